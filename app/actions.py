"""What people did from the dashboard, each with who did it: the record, and long ones carried out.

Enter a person, words and what to do; leaves `actions/<token>/` in the home: `action.json` when it
begins, `outcome.json` when it ended, a command's `output.txt`. Whoever carries it out holds a lock
there, so that one whose process died is told from one that goes on. A token begins one action.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

import msgspec

from app.people import Person, allowed, person_of
from flywheel import durable, once
from flywheel.errors import Busy, FlywheelError, Refused
from flywheel.home import Home
from flywheel.records import Record
from storage.locks import held

ROOT = Path(__file__).resolve().parent.parent
State = Literal["running", "done", "refused", "failed", "lost"]
_LONGEST_WORDS = 4000
_SHOWN = 100


class Begun(Record, frozen=True, kw_only=True):
    token: str
    what: str
    by: str
    role: str
    at: int
    project: str = ""
    arguments: tuple[str, ...] = ()
    """Of a `flywheel` command; () = done in the page itself."""


class Ended(Record, frozen=True, kw_only=True):
    state: State
    words: str
    at: int


class Action(Record, frozen=True, kw_only=True):
    begun: Begun
    state: State
    """lost = its process died before it could say how it ended; what it did stands where it is."""
    words: str = ""
    ended: int | None = None
    output: Path | None = None
    """What a command printed so far."""


_under_way: ContextVar[str] = ContextVar("flywheel_action", default="")


def act_once(
    home: Home, person: Person, token: str, what: str, act: Callable[[], str], project: str = ""
) -> Ended | None:
    """Does `act` and records it; None = the token was spent before, and nothing was done.

    What `act` raises of ours is its outcome, in words; anything else is recorded and raised on.
    """
    if not once.spend(home, token):
        return None
    folder = _begin(home, person, token, what, project, ())
    mark = _under_way.set(token)
    try:
        with held(folder / "alive", wait_s=0, busy="this action goes on already"):
            ended = _done(act)
            if not (folder / "started").exists():  # else the command says how it ended
                write_end(folder, ended)
    except BaseException as error:
        write_end(folder, _ended("failed", f"{type(error).__name__}: {error}"))
        raise
    finally:
        _under_way.reset(mark)
    return ended


def start_command(home: Home, person: Person, arguments: list[str], token: str = "") -> str:
    """Starts `flywheel ARGUMENTS` as a process that goes on when the dashboard stops.

    Args:
        token: a fresh one; "" = that of the confirmation which calls this.

    Returns: words that say so. How it stands: `actions`.
    """
    token = token or _under_way.get()
    line = " ".join(["flywheel", *arguments])
    if token == _under_way.get() and token:
        folder = home.actions / token
        begun = msgspec.json.decode((folder / "action.json").read_bytes(), type=Begun)
        begun = msgspec.structs.replace(begun, arguments=tuple(arguments))
        durable.write(folder / "action.json", msgspec.json.encode(begun))
        (folder / "started").touch()
    else:
        if not once.spend(home, token):
            return f"{line} was started before"
        folder = _begin(home, person, token, line, "", tuple(arguments))
    with (folder / "output.txt").open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "app.carry_out", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FLYWHEEL_HOME": str(home.root)},
            cwd=ROOT,
            start_new_session=True,
        )
    threading.Thread(target=child.wait, daemon=True).start()
    return f"started: {line}"


def note(home: Home, person: Person, what: str, **about: str) -> None:
    """One line for what has no outcome of its own to wait for: a review that was saved."""
    line = {"at": time.time_ns(), "by": person.name, "role": person.role, "what": what, **about}
    home.actions.mkdir(parents=True, exist_ok=True)
    with (home.actions / "notes.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def actions(home: Home, *, limit: int = _SHOWN) -> list[Action]:
    """The newest actions, newest first, and how each stands."""
    if not home.actions.is_dir():
        return []
    folders = [one for one in os.scandir(home.actions) if one.is_dir()]
    folders.sort(key=lambda one: one.stat().st_mtime_ns, reverse=True)
    found = [_action(Path(one.path)) for one in folders[:limit]]
    return sorted((one for one in found if one), key=lambda one: one.begun.at, reverse=True)


def may(home: Home, person: Person, role: str, *, local: bool) -> Person:
    """The person as the file names them now.

    Raises:
        Refused: their role does not allow it, whatever the page showed.
    """
    now = person_of(home, person.name, local=local)
    if not allowed(now, role):
        raise Refused(f"{now.name} is {now.role}; this needs a {role}")
    return now


@contextlib.contextmanager
def alive(folder: Path) -> Iterator[None]:
    """Marks an action as going on."""
    with held(folder / "alive", wait_s=10, busy="this action goes on already"):
        yield


def write_end(folder: Path, ended: Ended) -> None:
    durable.write(folder / "outcome.json", msgspec.json.encode(ended))


def outcome(code: int, words: str) -> Ended:
    """How a command with this exit code ended."""
    states: dict[int, State] = {0: "done", 3: "refused"}
    return _ended(states.get(code, "failed"), words)


def _done(act: Callable[[], str]) -> Ended:
    try:
        return _ended("done", act())
    except Refused as error:
        return _ended("refused", str(error))
    except FlywheelError as error:
        return _ended("failed", str(error))


def _ended(state: State, words: str) -> Ended:
    return Ended(state=state, words=words[:_LONGEST_WORDS], at=time.time_ns())


def _begin(
    home: Home, person: Person, token: str, what: str, project: str, arguments: tuple[str, ...]
) -> Path:
    folder = home.actions / token
    begun = Begun(
        token=token, what=what, by=person.name, role=person.role, at=time.time_ns(),
        project=project, arguments=arguments,
    )  # fmt: skip
    durable.write(folder / "action.json", msgspec.json.encode(begun))
    return folder


def _action(folder: Path) -> Action | None:
    try:
        begun = msgspec.json.decode((folder / "action.json").read_bytes(), type=Begun)
    except (OSError, msgspec.DecodeError):
        return None
    output = folder / "output.txt"
    shown = output if output.exists() else None
    ended = _end_of(folder)
    if ended is not None:
        return Action(begun=begun, state=ended.state, words=ended.words, ended=ended.at,
                      output=shown)  # fmt: skip
    try:
        with held(folder / "alive", wait_s=0, busy="it goes on"):
            ended = _end_of(folder)
    except Busy:
        return Action(begun=begun, state="running", output=shown)
    if ended is not None:
        return Action(begun=begun, state=ended.state, words=ended.words, ended=ended.at,
                      output=shown)  # fmt: skip
    young = time.time_ns() - begun.at < 30 * 10**9
    return Action(begun=begun, state="running" if young else "lost", output=shown)


def _end_of(folder: Path) -> Ended | None:
    try:
        return msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Ended)
    except (OSError, msgspec.DecodeError):
        return None
