"""What a marked method is given, and what is made of what it returns.

Enter: one call. Leave: its arguments by name, copies where they could be changed, and an outcome: a
finite number, or null with the reason. Invariant: what a method changes reaches no other method,
and one that changed anything but `state` is refused.
"""

import math
import traceback
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from environments.board import Outcome
from environments.judges.contract import Judged
from environments.judges.listening import Listening
from environments.marks import Method, Ungraded
from flywheel.records import Choice, Problem, Span, Trace, last_answer

if TYPE_CHECKING:
    from environments.judges.contract import Judge
    from environments.runtimes.contract import Runtime

KEPT = 2000
"""Characters of a reason: its first line, and the last ones of a traceback."""
CHANGED = "it changed the trace or the problem that it was given"
PLAIN = (float, bool, int)
"""What most rewards return."""
_LINE = 300
_HEAD = "Traceback (most recent call last):\n  "
_OF_TRACE = frozenset(("trace", "choice", "span"))
T = TypeVar("T")


class Call(NamedTuple):
    """One reward of one trace, or of one group."""

    method: Method
    at: int
    """Its slot on the board; a group reward has one for each of the group, from here on."""
    trace: Trace
    problem: Problem | None = None
    group: tuple[Trace, ...] | None = None
    span: Span | None = None
    runtime: "Runtime | None" = None
    judge: "Judge | None" = None

    @property
    def slots(self) -> range:
        return range(self.at, self.at + (len(self.group) if self.group else 1))


class _Copy(Generic[T]):
    """A copy by way of its encoding, which tells afterwards whether it was changed."""

    def __init__(self, value: T, kind: Any) -> None:
        self.codec: Any = msgspec.msgpack
        try:
            self.before: bytes = msgspec.msgpack.encode(value)
        except OverflowError:  # an integer of more than 64 bits
            self.codec = msgspec.json
            self.before = msgspec.json.encode(value)
        self.value: T = self.codec.decode(self.before, type=kind)

    def changed(self) -> bool:
        try:
            return bool(self.codec.encode(self.value) != self.before)
        except Exception:  # what cannot be encoded any more is not what it was
            return True


class Offer:
    """What the calls of one lane share: copies made when first named, and their `state`."""

    def __init__(
        self, trace: Trace, problem: Problem | None, before: "Offer | None" = None
    ) -> None:
        """`before`: the offer of the lane before, whose copies of the same things serve again."""
        self.original, self.original_problem = trace, problem
        same = before is not None and before.original is trace
        self._trace: _Copy[Trace] | None = before._trace if before and same else None
        same = before is not None and before.original_problem is problem
        self._problem: _Copy[Problem | None] | None = before._problem if before and same else None
        self._group: _Copy[tuple[Trace, ...]] | None = None
        self._state: dict[str, Any] | None = None
        self._listening: Listening | None = None

    def arguments(self, call: Call, sandbox: "Runtime | None" = None) -> dict[str, Any]:
        given: dict[str, Any] = {}
        self._listening = Listening(call.judge) if call.judge is not None else None
        for name in call.method.arguments:
            if name == "answer":
                choice = last_answer(self.original)
                given[name] = choice.message.text if choice else ""
            elif name == "runtime":
                given[name] = call.runtime
            elif name == "judge":
                given[name] = self._listening
            elif name == "sandbox":
                given[name] = sandbox
            elif name == "span":
                given[name] = self.span(call.span)
            elif name == "group":
                self._group = _Copy(call.group or (), tuple[Trace, ...])
                given[name] = self._group.value
            else:
                given[name] = getattr(self, name)
        return given

    def as_heard(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Outcomes of the last call, as what its judge said lets them be."""
        return self._listening.marked(outcomes) if self._listening else outcomes

    @property
    def trace(self) -> Trace:
        self._trace = self._trace or _Copy(self.original, Trace)
        return self._trace.value

    @property
    def problem(self) -> Problem | None:
        self._problem = self._problem or _Copy(self.original_problem, Problem | None)
        return self._problem.value

    @property
    def choice(self) -> Choice | None:
        return last_answer(self.trace)

    @property
    def state(self) -> dict[str, Any]:
        """As the episode left it, where the trace keeps that."""
        if self._state is None:
            kept = self.original.attributes.get("state")
            self._state = _Copy(kept, dict[str, Any]).value if isinstance(kept, dict) else {}
        return self._state

    def span(self, span: Span | None) -> Span | None:
        return next((one for one in self.trace.spans if span and one.id == span.id), None)

    def changed(self, method: Method) -> bool:
        """Whether what `method` was given is not what it was; the next one gets a new copy."""
        found = False
        if self._problem and "problem" in method.arguments and self._problem.changed():
            self._problem, found = None, True
        if self._trace and not _OF_TRACE.isdisjoint(method.arguments) and self._trace.changed():
            self._trace, found = None, True
        if self._group:
            found = found or self._group.changed()
            self._group = None
        return found


def outcomes_of(call: Call, value: Any) -> list[Outcome]:
    """What a method returned, for each slot of its call."""
    if call.group is None:
        return [_outcome(value)]
    if not isinstance(value, Sequence) or len(value) != len(call.group):
        raise TypeError(
            f"a group reward returns one number for each of its {len(call.group)} traces"
        )
    return [_outcome(one, "the group reward gave this trace none") for one in value]


def _outcome(value: Any, none: str | None = None) -> Outcome:
    if type(value) in PLAIN and math.isfinite(value):
        return Outcome(float(value))
    if isinstance(value, Judged):
        said = value.reason[:KEPT] or None
        if value.value is None:
            return Outcome(None, said or "the judge gave no verdict")
        return Outcome(number_of(value.value), said)
    if value is None and none:
        return Outcome(None, none)
    try:
        return Outcome(number_of(value))
    except Ungraded as error:
        return Outcome(None, str(error))


def number_of(value: Any) -> float:
    """`value` as a finite number; a truth value counts 0 or 1, a string is no number.

    Raises:
        Ungraded: it is none.
    """
    if not isinstance(value, Real) and not hasattr(value, "__float__"):
        raise Ungraded(f"returned {type(value).__name__} {str(value)[:80]!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise Ungraded(f"returned {number}, which is no finite number")
    return number


def reason_of(error: BaseException) -> str:
    """Why there is no number: one line; below it the traceback, where something broke."""
    if isinstance(error, Ungraded):
        return str(error)[-KEPT:] or "not given"
    if isinstance(error, MemoryError):
        traceback.clear_frames(error.__traceback__)  # they hold what filled the memory
    told = "".join(traceback.format_exception(error))
    line = traceback.format_exception_only(error)[-1].strip().partition("\n")[0][:_LINE]
    room = KEPT - len(line) - len(_HEAD) - 2
    return f"{line}\n" + (told if len(told) <= room else f"{_HEAD}…{told[-room:]}")
