"""What people asked for in MLflow, told apart from what we set ourselves.

MLflow keeps no author of an alias. So what we set is noted in the home before we set it, and an
alias that names another version was moved by a person, who asks for that version to be promoted.
What was asked stays noted here until it is answered, whoever is killed or overwrites it meanwhile.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flywheel import durable
from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.records import Record
from storage.moments import moment

CHAMPION, CHALLENGER, TAG = "the alias champion", "the alias challenger", "the tag promote"
_ALIASES = {"champion": CHAMPION, "challenger": CHALLENGER}
"""Aliases whose moving asks for something; `previous` is only ever set back."""
_log = logging.getLogger(__name__)


class Ask(Record, frozen=True, kw_only=True):
    id: str
    """ULID: whatever is killed, an ask has one answer."""
    version: str
    how: str
    """CHAMPION, CHALLENGER or TAG."""
    said: str = ""
    """The tag's value."""
    at: int = 0
    """When it was noticed."""


class Kept(Record, frozen=True, kw_only=True):
    ours: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Alias -> the version that we set it to; two while one is being replaced."""
    asked: dict[str, Ask] = msgspec.field(default_factory=dict)
    """By version: asked twice is asked once."""


def kept(home: Home, project: str) -> Kept | None:
    """None = nothing was ever noted. A file that cannot be read is set aside, and its asks are
    noticed again, since what asks stays in MLflow until it is answered."""
    path = _path(home, project)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, msgspec.DecodeError) as error:
        aside = path.with_suffix(".broken")
        os.replace(path, aside)
        _log.warning("%s cannot be read (%s); it is now %s", path, error, aside.name)
        return None


def keep(home: Home, project: str, now: Kept) -> None:
    durable.write(_path(home, project), msgspec.json.encode(now))


def with_asked(home: Home, now: Kept, version: str, how: str, said: str = "") -> Kept:
    if version in now.asked:
        return now
    ask = Ask(id=new_ulid(), version=version, how=how, said=said, at=moment(home))
    return msgspec.structs.replace(now, asked={**now.asked, version: ask})


def with_moved(home: Home, now: Kept, aliases: Mapping[str, str]) -> Kept:
    """With an ask for each alias that is where we did not put it."""
    for alias, how in _ALIASES.items():
        version = aliases.get(alias)
        if version is not None and version not in now.ours.get(alias, ()):
            now = with_asked(home, now, version, how)
    return now


def with_ours(now: Kept, wanted: Mapping[str, str | None], *, done: bool) -> Kept:
    """With `wanted` as what we set: beside what we had set before, until it is `done`."""
    ours = dict(now.ours)
    for alias, version in wanted.items():
        before = () if done else ours.get(alias, ())
        ours[alias] = tuple(dict.fromkeys([*before, *([version] if version else [])]))
    return msgspec.structs.replace(now, ours=ours)


def without(now: Kept, version: str) -> Kept:
    return msgspec.structs.replace(
        now, asked={one: ask for one, ask in now.asked.items() if one != version}
    )


def _path(home: Home, project: str) -> Path:
    return home.mlflow / "asked" / f"{project}.json"
