"""A base model as it is, without a project, answering by the embedded engine.

Enter what the person named. Leaves where the interception passes calls on to, for the time of a
block. Invariant: the engine ends with the block, and no project is made or routed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.progress import report
from flywheel.settings import Settings

if TYPE_CHECKING:
    from serving.interception import Served

BASE = "base"


def base_model(name: str, models: Path) -> Path | None:
    """The folder of a base model; None = the name is of none.

    Args:
        name: `base`, which is the only one under `models`; the name of one there; or a folder.

    Raises:
        UsageError: `base` could be several.
    """
    if name == BASE:
        known = sorted(path.parent for path in models.glob("*/config.json"))
        if len(known) > 1:
            names = ", ".join(path.name for path in known)
            raise UsageError(f"--model base could be any of {names}: name one")
        return known[0] if known else None
    places = (models / name, Path(name))
    return next((one for one in places if (one / "config.json").is_file()), None)


@contextlib.contextmanager
def served_base(model: Path, home: Home, settings: Settings) -> "Iterator[Served]":
    """
    Raises:
        EngineError: no engine could be started.
    """
    from serving.engines.process import EngineProcess
    from serving.interception import Served

    report("engine", 0, None, f"starting with {model.name}")
    with EngineProcess(home, model, threads=settings.threads) as engine:
        with engine.client() as client:
            said = client.health()
        report("engine", 1, 1, f"{model.name} answers")
        yield Served(
            engine.url,
            BASE,
            deployment=model.name,
            template_digest=said.get("template_digest"),
            tokenizer_digest=said.get("tokenizer_digest"),
            base=str(model.resolve()),
        )
