"""Mines problems from recorded traffic, with what people said later as their truth.

Enter: traces and the effective feedback of each, in batches. Leave: problems, each once, with its
side of the evaluation (`environments.split`). Invariant: the same traces and feedback in any order
give the same problems, and more of them never move a problem to the other side. Memory grows with
the problems, not with how often they are asked.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from environments.define import Environment
from environments.split import split
from environments.tasksets.contract import Side
from flywheel import progress
from flywheel.curate_section import ProblemsSection
from flywheel.ids import canonical, digest
from flywheel.records import Feedback, Message, Problem, Trace, model_spans
from flywheel.reviews import states_answer

MINED = ("production", "import", "demonstration")
"""Origins of traffic; our own rollouts pose no new problems."""
MAX_TEXT = 20_000
"""Characters of a user's own words, and ten times as many of a prompt, from which it is no problem
but somebody's file."""
MAX_PROBLEMS = 200_000
"""Different prompts that are kept; of more, those whose hashes come first."""
_SAID = 64
"""Different answers that are remembered of one prompt: two are a conflict already."""

Came = tuple[bool, int, str]


class Asked(NamedTuple):
    """What is known of one prompt."""

    problem: Problem
    """Of who asked first."""
    came: Came
    said: dict[str, Feedback]
    """What was said of it, each different thing once."""
    times: int
    """How often it was asked, since the time that counts."""


class Traffic:
    """Traces in any order, as the problems that they pose."""

    def __init__(self, environment: Environment, *, since: int | None = None) -> None:
        """
        Args:
            since: traces that began before are not counted as traffic; they pose problems all the
                same, so that sides do not depend on it.
        """
        self.environment, self.since = environment, since
        self.left_out: Counter[str] = Counter()
        self.traces = 0
        self._asked: dict[str, Asked] = {}
        self._shared: dict[Any, Any] = {}

    def add(self, trace: Trace, said: Sequence[Feedback]) -> None:
        if trace.origin not in MINED:
            return
        self.traces += 1
        problem = self._posed(trace, said)
        if problem is None:
            self.left_out["poses no problem"] += 1
        elif not problem.text.strip():
            self.left_out["no words of a user"] += 1
        elif _huge(problem):
            self.left_out[f"longer than {MAX_TEXT:,} characters"] += 1
        else:
            self._take(problem.id, problem, trace, said)

    def problems(self) -> list[Problem]:
        """In the order they came, each with how often it was asked (`attributes["traffic"]`)."""
        self._bound()
        ordered = sorted(self._asked.values(), key=lambda asked: asked.came)
        return [_with(one.problem, traffic=one.times) for one in ordered]

    def _posed(self, trace: Trace, said: Sequence[Feedback]) -> Problem | None:
        try:
            return self.environment.problem_of(trace, said)
        except Exception as error:
            error.add_note(f"while environment {self.environment.name} mined trace {trace.id}")
            raise

    def _take(self, name: str, problem: Problem, trace: Trace, said: Sequence[Feedback]) -> None:
        came = _came(trace)
        counts = self.since is None or (not came[0] and came[1] >= self.since)
        before = self._asked.get(name)
        if before is None:
            known = _kept({}, said)
            self._asked[name] = Asked(self._interned(problem), came, known, int(counts))
            if len(self._asked) > MAX_PROBLEMS * 5 // 4:
                self._bound()
            return
        known = _kept(before.said, said)
        first = problem if came < before.came else before.problem
        if known.keys() != before.said.keys() or first is problem:
            first = self._with_truth(first, trace, known)
        times = before.times + counts
        self._asked[name] = Asked(self._interned(first), min(came, before.came), known, times)

    def _with_truth(self, first: Problem, trace: Trace, said: Mapping[str, Feedback]) -> Problem:
        """Who asked first, with what all that was said makes of the answer."""
        told = self._posed(trace, [said[key] for key in sorted(said)]) or first
        attributes = {key: one for key, one in first.attributes.items() if key != "truth"}
        if "truth" in told.attributes:
            attributes["truth"] = told.attributes["truth"]
        return msgspec.structs.replace(
            first, answer=told.answer, truth_from=told.truth_from, attributes=attributes
        )

    def _interned(self, problem: Problem) -> Problem:
        """With the messages and tools that prompts share held once."""
        shared = (self._once(message) for message in problem.messages[:-1])
        messages = (*shared, *problem.messages[-1:])
        tools = self._shared.setdefault(canonical(problem.tools), problem.tools)
        return msgspec.structs.replace(problem, messages=messages, tools=tools)

    def _once(self, message: Message) -> Message:
        try:
            return self._shared.setdefault(message, message)  # type: ignore[no-any-return]
        except TypeError:  # a part that holds any JSON
            return message

    def _bound(self) -> None:
        """The hashes decide who stays, so that the order of the traces does not."""
        for name in sorted(self._asked)[MAX_PROBLEMS:]:
            del self._asked[name]
            self.left_out[f"beyond {MAX_PROBLEMS:,} different prompts"] += 1


def mine(
    environment: Environment,
    traces: Iterable[Trace],
    feedback: Mapping[str, Sequence[Feedback]],
    section: ProblemsSection,
    *,
    near_duplicate: float = 0.7,
) -> list[Problem]:
    """The problems that `traces` pose, in the order they came; `feedback` is by trace id.

    A prompt asked several times is one problem, of who asked first; where its answers differ it
    has none, and `attributes["truth"]` says why.
    """
    traffic = Traffic(environment)
    for trace in traces:
        traffic.add(trace, feedback.get(trace.id, ()))
    return sided(traffic, section, near_duplicate)


def sided(
    traffic: Traffic,
    section: ProblemsSection,
    near_duplicate: float = 0.7,
    settled: Mapping[str, Side] | None = None,
) -> list[Problem]:
    """The traffic's problems, each on its side; what would stand on both is left out.

    `settled`: sides that were given before, by problem id.
    """
    posed = traffic.problems()
    found = split(posed, section, near_duplicate, settled)
    counts = found.left_out + traffic.left_out
    left_out = "; ".join(f"{n} left out: {kind}" for kind, n in sorted(counts.items()))
    progress.report("mine", len(found.problems), len(posed), left_out)
    traffic.left_out.update(found.left_out)
    return found.problems


def choose(
    problems: Iterable[Problem],
    limit: int,
    seen: AbstractSet[str] = frozenset(),
    *,
    known: bool = True,
) -> list[Problem]:
    """At most `limit` problems: those not `seen` (ids) first, among them what was picked
    (`environments.picking`), then by hash.

    Args:
        known: only with a known answer. False = those with one first.
    """
    problems = [one for one in problems if one.answer is not None or not known]

    def order(problem: Problem) -> tuple[bool, bool, float, str]:
        rank = problem.attributes.get("pick", float("inf"))
        return problem.answer is None, problem.id in seen, rank, digest("choose", problem.id)

    return sorted(problems, key=order)[:limit]


def _with(problem: Problem, **attributes: Any) -> Problem:
    return msgspec.structs.replace(problem, attributes=problem.attributes | attributes)


def _huge(problem: Problem) -> bool:
    whole = sum(len(message.text) for message in problem.messages)
    return len(problem.text) > MAX_TEXT or whole > 10 * MAX_TEXT


def _kept(known: Mapping[str, Feedback], said: Sequence[Feedback]) -> dict[str, Feedback]:
    """`known` with what is new; of too many the reviews first, then by hash, in any order alike."""
    both = {**known, **{_saying(item): item for item in said}}
    if len(both) <= _SAID:
        return both
    ordered = sorted(both, key=lambda key: (not states_answer(both[key]), key))
    return {key: both[key] for key in ordered[:_SAID]}


def _saying(said: Feedback) -> str:
    """What is said, whoever says it and of which trace; reviews apart from the rest."""
    return digest(msgspec.structs.replace(said, target="", at=0, by=None))


def _came(trace: Trace) -> Came:
    """Order of arrival; traces of unknown time come last, by id."""
    times = [span.start for span in model_spans(trace) if span.start is not None]
    return (not times, min(times, default=0), trace.id)
