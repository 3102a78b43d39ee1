"""Which environments are installed, shipped ones among them.

Leaves a row each. Invariant: one that cannot be loaded is a row with its reason.
"""

import importlib.util
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from environments.define import Environment
from environments.load import GROUP, load_environment, problems_of
from flywheel.errors import FlywheelError


def listed(*, count: bool = False) -> list[dict[str, Any]]:
    """
    Args:
        count: read all problems of each too; generators and large files take their time.
    """
    found = [_row(one.name, one.value, one.dist.name if one.dist else None, count)
             for one in sorted(entry_points(group=GROUP))]  # fmt: skip
    return [row for row in found if row is not None]


def _row(name: str, value: str, package: str | None, count: bool) -> dict[str, Any] | None:
    row: dict[str, Any] = {
        "name": name,
        "where": value,
        "package": "shipped" if package == "flywheel" else package,
        "about": None,
        "lacks": None,
        "problems": None,
        "reason": None,
    }
    if not _is_there(value) and package == "flywheel":
        return None
    try:
        environment = load_environment(name, Path())
        row["about"] = _about(type(environment))
        row["lacks"] = environment.lacks()
        if count:
            sides = Counter(one.split for one in problems_of(environment).problems)
            row["problems"] = {"train": sides["train"], "heldout": sides["heldout"]}
    except FlywheelError as error:
        row["reason"] = str(error).split("\n")[0]
    except (Exception, SystemExit) as error:  # of `lacks`, anybody's code
        row["reason"] = f"{type(error).__name__}: {error}".split("\n")[0]
    return row


def _about(class_: type[Environment]) -> str:
    """The first line of what the module says, or of the class's own words where there is none or
    the module has several environments."""
    module = sys.modules.get(class_.__module__)
    own = [one for one in vars(module).values() if isinstance(one, type)
           and issubclass(one, Environment) and one.__module__ == class_.__module__]  # fmt: skip
    texts = [module.__doc__ if module else None, class_.__doc__]
    if len(own) > 1:
        texts.reverse()
    text = next((one for one in texts if one and one.strip()), "it says nothing of itself")
    return text.strip().split("\n")[0]


def _is_there(value: str) -> bool:
    try:
        return importlib.util.find_spec(value.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False
    except (Exception, SystemExit):
        return True  # it is, and does not run: loading it tells
