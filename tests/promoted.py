"""A home whose sorting project was turned once, by the command, and promoted: made once a test run,
whoever asks for it. Tests that change it take a copy."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

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
        _made[base] = promote_in(factory.mktemp("promoted"))
    return _made[base]


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
