"""A home whose sorting project was turned once, by the command, and promoted: made once a test run,
whoever asks for it; where scripts/test.sh names a folder, once for all its groups of tests, each of
which has a copy. Tests that change it take a copy."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from filelock import FileLock

from flywheel.home import Home
from tests.app.calling import ROOT, Said, call

SORTING = ROOT / "tests" / "sorting"
_made: "dict[Path, Promoted]" = {}


class Promoted(NamedTuple):
    home: Path
    project: Path
    turned: Said
    """What `flywheel turn --json` said."""


def promoted_home(factory: pytest.TempPathFactory) -> Promoted:
    base = factory.getbasetemp()
    if base not in _made:
        own, shared = factory.mktemp("promoted"), os.environ.get("FLYWHEEL_TEST_SHARED")
        _made[base] = copied(Path(shared), own) if shared else promote_in(own)
    return _made[base]


def copied(shared: Path, own: Path) -> Promoted:
    """The home in `shared`, made if it is not there yet, copied into `own`."""
    said, place = shared / "turned.json", shared / "promoted"
    with FileLock(shared / "promoted.lock"):
        if not said.exists():
            place.mkdir()
            said.write_text(json.dumps(promote_in(place).turned))
        turned = Said(*json.loads(said.read_text()))
    shutil.copytree(place / "home", own / "home", symlinks=True)
    return Promoted(own / "home", place / "sorting", turned)


def promote_in(
    place: Path, give: Callable[[Home, ModuleType, int], None] | None = None
) -> Promoted:
    """The same in any folder; `give` delivers the traffic, None = as `deliver` does."""
    project, home = place / "sorting", Home(place / "home")
    shutil.copytree(SORTING, project)
    home.root.mkdir()
    (give or deliver)(home, load_traffic(), 160)
    return Promoted(home.root, project, call("turn", project, "--json", home=home.root))


def load_traffic() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sorting_traffic", SORTING / "traffic.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def deliver(home: Home, traffic: ModuleType, count: int) -> None:
    """Traffic and feedback as the gateway would have recorded them."""
    from storage.inbox import Inbox

    asks = traffic.asks(count)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))
