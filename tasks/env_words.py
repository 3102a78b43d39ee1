"""What `flywheel env check` found, in few words.

Enter answers with their scores, and reasons that may be whole tracebacks. Leaves one line each;
the same said of many is said once, with how many.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.env_scores import Scored

SHOWN = 3
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def brief(reason: str) -> str:
    """Its first line, and where it broke: the last frame of the traceback below it."""
    line = reason.strip().partition("\n")[0]
    frames = _FRAME.findall(reason)
    return f"{line} ({frames[-1][0]}:{frames[-1][1]})" if frames else line


def worst(found: "Sequence[Scored]") -> str:
    by: dict[str, list[str]] = {}
    for one in found:
        told = (one.why or "") if one.score is None else f"{one.score:.3f}"
        by.setdefault(told, []).append(one.problem[:8])
    if not by:
        return ""
    some = list(by.items())[:SHOWN]
    return ". " + "; ".join(f"{_which(ids)}: {told}" for told, ids in some)


def _which(ids: Sequence[str]) -> str:
    more = len(ids) - 1
    return f"problem {ids[0]}" + (f" and {more} answers more" if more else "")


def differ(one: Any, other: Any) -> str:
    if one is None or other is None:
        return "graded once only"
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return ", ".join(f"{name} {one.get(name)} then {other.get(name)}" for name in names[:SHOWN])


def counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.items())


def short(text: str) -> str:
    return repr(text[:60] + ("\u2026" if len(text) > 60 else ""))
