"""What a review page remembers between reruns: its item, its one-time token, what it saved.

Lives in the session; every change is made in a callback, which runs once an event.
"""

from dataclasses import dataclass, field
from typing import Any

from app.views.frame import Shown, shown
from app.views.review_data import Saved, Taken, Vanished, save, taken_back
from flywheel import once
from flywheel.errors import FlywheelError
from flywheel.ids import new_ulid
from storage import leases

_KEY = "flywheel_review"


@dataclass
class State:
    person: str
    project: str
    holder: str = field(default_factory=new_ulid)
    """This page, to the leases."""
    item: str | None = None
    token: str = field(default_factory=once.issue)
    """Of what is said next."""
    done: list[Saved] = field(default_factory=list)
    passed: set[str] = field(default_factory=set)
    """Skipped, saved or gone: not offered again in this session."""
    told: tuple[str, str] | None = None
    """(done, lost or failed; words) to be shown once."""
    editing: bool = False
    mode: str = ""


def begin(here: Shown) -> State:
    """The session's state; a new one where somebody else sits down or the project changes."""
    import streamlit as st

    state: State | None = st.session_state.get(_KEY)
    if state is None or (state.person, state.project) != (here.person.name, here.project):
        if state is not None and state.item is not None:
            leases.release(here.home, state.project, state.item, holder=state.holder)
        state = State(here.person.name, here.project)
        st.session_state[_KEY] = state
    return state


def current() -> State:
    import streamlit as st

    state: State = st.session_state[_KEY]
    return state


def say(token: str, records: Any, items: tuple[str, ...], words: str) -> None:
    """Saves what was said under `token` and goes on to the next item."""
    here, state = shown(), current()
    if token != state.token:
        return  # a second click: its item has been dealt with
    try:
        saved = save(
            here.home, here.project, here.person, Saved(token, tuple(records), items, words),
            local=here.local, holder=state.holder,
        )  # fmt: skip
    except (Vanished, Taken) as error:
        state.told = ("lost", f"{error}. Here is the next one.")
        forward(state, items)
        return
    except FlywheelError as error:
        state.told = ("failed", f"Not saved: {error}")
        return
    if saved is not None:
        state.done.append(saved)
    forward(state, items)


def skip(token: str, items: tuple[str, ...]) -> None:
    here, state = shown(), current()
    if token != state.token:
        return
    for one in items:
        leases.release(here.home, state.project, one, holder=state.holder)
    forward(state, items)


def forward(state: State, items: tuple[str, ...]) -> None:
    state.passed.update(items)
    state.item, state.token, state.editing = None, once.issue(), False


def undo() -> None:
    """Takes the last thing back; its item comes again, where nobody else has it."""
    here, state = shown(), current()
    if not state.done:
        return
    last = state.done[-1]
    back = taken_back(last, once.issue())
    mine = all(
        leases.renew(
            here.home, state.project, one, by=state.person, holder=state.holder, again=True
        )
        for one in last.items
    )
    if not mine:  # one's own word is taken back all the same; the item stays the other's
        back = back._replace(items=())
    try:
        save(here.home, here.project, here.person, back, local=here.local, holder=state.holder)
    except FlywheelError as error:
        state.told = ("failed", f"Not taken back: {error}")
        return
    state.done.pop()
    for one in last.items:
        leases.release(here.home, state.project, one, holder=state.holder)
        state.passed.discard(one)
    if mine and len(last.items) == 1:
        state.item = last.items[0]
    state.token, state.editing = once.issue(), False
    state.told = ("done", f"Took back: {last.words}")


def turn_to(state: State, mode: str) -> None:
    """Another way of reviewing: what was at hand is free again."""
    if state.mode != mode:
        here = shown()
        if state.mode and state.item is not None:
            leases.release(here.home, state.project, state.item, holder=state.holder)
            state.item = None
        state.mode, state.editing = mode, False


def take_next(
    state: State, here: Shown, candidates: list[str], *, again: bool = False
) -> str | None:
    """The item to be shown: the one at hand while it is this page's, else the next free one, with
    `again` also one that this person has reviewed."""
    if state.item is not None:
        if leases.renew(here.home, here.project, state.item, by=state.person, holder=state.holder):
            return state.item
        state.told = ("lost", "Somebody else took this item after yours had run out: the next one.")
        forward(state, (state.item,))
    left = [one for one in candidates if one not in state.passed]
    state.item = leases.take(here.home, here.project, left, by=state.person, holder=state.holder,
                             again=again)  # fmt: skip
    return state.item
