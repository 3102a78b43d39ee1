"""Mines problems from recorded traffic, with what people said later as their truth.

Enter: traces and the effective feedback of each. Leave: problems, each once, with its side of the
evaluation (`environments.split`). Invariant: the same traces and feedback in any order give the
same problems, and more of them never move a problem to the other side.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from environments.define import Environment
from environments.split import split
from flywheel import progress
from flywheel.ids import digest
from flywheel.project import ProblemsSection
from flywheel.records import Feedback, Problem, Trace, model_spans

MINED = ("production", "import", "demonstration")
"""Origins of traffic; our own rollouts pose no new problems."""


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
    asked: dict[str, list[Trace]] = {}
    posed: dict[str, Problem] = {}
    for trace in sorted((trace for trace in traces if trace.origin in MINED), key=_came):
        try:
            problem = environment.problem_of(trace, feedback.get(trace.id, ()))
        except Exception as error:
            error.add_note(f"while environment {environment.name} mined trace {trace.id}")
            raise
        if problem is not None:
            posed.setdefault(problem.id, problem)
            asked.setdefault(problem.id, []).append(trace)
    for name, same in asked.items():
        if len(same) > 1:
            said = [item for trace in same for item in feedback.get(trace.id, ())]
            posed[name] = environment.problem_of(same[0], said) or posed[name]
    found = split(posed.values(), section, near_duplicate)
    left_out = "; ".join(f"{n} left out: {kind}" for kind, n in sorted(found.left_out.items()))
    progress.report("mine", len(found.problems), len(posed), left_out)
    return found.problems


def choose(
    problems: Iterable[Problem], limit: int, seen: AbstractSet[str] = frozenset()
) -> list[Problem]:
    """At most `limit` problems with a known answer: those not `seen` (ids) first, then by hash."""
    known = [problem for problem in problems if problem.answer is not None]
    return sorted(known, key=lambda p: (p.id in seen, digest("choose", p.id)))[:limit]


def _came(trace: Trace) -> tuple[bool, int, str]:
    """Order of arrival; traces of unknown time come last, by id."""
    times = [span.start for span in model_spans(trace) if span.start is not None]
    return (not times, min(times, default=0), trace.id)
