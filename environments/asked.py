"""What a batch of traces asks of an environment's rewards, and the grades that come of it.

Enter: traces with what is known of each. Leave: calls in lanes for the child, then grades.
Invariant: what cannot be graded is never asked: it is null with its reason, not 0.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from environments.board import Outcome
from environments.define import Environment, Method
from environments.judges.standing import judged
from environments.offered import Call
from flywheel.records import (
    Feedback,
    Grade,
    Problem,
    Span,
    Trace,
    Truncated,
    main_spans,
    model_spans,
)

if TYPE_CHECKING:
    from environments.judges.contract import Judge
    from environments.runtimes.contract import Runtime

GRADED = ("reward", "metric", "group_reward", "step_reward")


class Item(NamedTuple):
    trace: Trace
    problem: Problem | None = None
    """None = not known, or not one of this environment."""
    group: Sequence[Trace] | None = None
    """All traces of the problem in one run, this one among them."""
    runtime: "Runtime | None" = None
    """The episode's own, while it is there; None = a recorded trace."""
    judge: "Judge | None" = None
    """What rewards that name `judge` get; it is used in a forked child, so its connections must be
    made when it is first asked."""
    unposed: str | None = None
    """Why no problem is known, where the environment failed to say which."""


def posed(environment: Environment, trace: Trace, said: Sequence[Feedback]) -> Item:
    """A recorded trace with the problem that it poses; a hook that fails on it is a reason."""
    try:
        return Item(trace, environment.problem_of(trace, said))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:500]
        return Item(trace, unposed=f"its problem cannot be told: {told}")


class _Slot(NamedTuple):
    method: Method
    span_id: str | None
    reason: str | None
    """Why it is not tried; None = `at` is its place among the outcomes."""
    at: int = -1


class Asked:
    """What is to be asked of the child for a batch, and where each answer goes."""

    def __init__(self, environment: Environment, methods: Sequence[Method] | None) -> None:
        chosen = environment.methods if methods is None else methods
        self.environment = environment
        self.methods = [method for method in chosen if method.mark.kind in GRADED]
        self.lanes: list[Sequence[Call]] = []
        self.slots = 0
        self.rows: dict[Path, dict[int, tuple[Item, dict[str, int]]]] = {}
        """What grader scripts are asked: by script and item, the slot of each key."""
        self._items: list[tuple[Item, list[_Slot]]] = []
        self._groups: dict[tuple[str, ...], Call] = {}
        self._gradable: dict[int, tuple[Trace, ...]] = {}
        self._problem_ids: dict[int, str] = {}

    def add(self, item: Item) -> None:
        silent = why_ungradable(item.trace)
        slots: list[_Slot] = []
        shared: list[Call] = []
        for method in self.methods:
            for span in _spans(method, item.trace):
                reason = silent or _why_not(method, item)
                if reason is not None:
                    slots.append(_Slot(method, span.id if span else None, reason))
                elif method.script is not None:
                    slots.append(self._scripted(method, method.script, item))
                elif method.mark.kind == "group_reward":
                    slots.append(self._in_group(method, item))
                else:
                    slots.append(_Slot(method, span.id if span else None, None, self.slots))
                    call = self._call(method, item, span)
                    if "state" in method.arguments or method.live:
                        shared.append(call)
                    else:
                        self.lanes.append((call,))
        if shared:
            self.lanes.append(shared)
        self._items.append((item, slots))

    def _call(
        self,
        method: Method,
        item: Item,
        span: Span | None = None,
        group: tuple[Trace, ...] | None = None,
    ) -> Call:
        judge = item.judge if "judge" in method.arguments else None
        runtime = item.runtime if method.live else None
        call = Call(method, self.slots, item.trace, item.problem, group, span, runtime, judge)
        self.slots += len(group) if group else 1
        return call

    def _scripted(self, method: Method, script: Path, item: Item) -> _Slot:
        _, keys = self.rows.setdefault(script, {}).setdefault(len(self._items), (item, {}))
        keys[method.name] = self.slots
        self.slots += 1
        return _Slot(method, None, None, keys[method.name])

    def _in_group(self, method: Method, item: Item) -> _Slot:
        """The method is called once for all of the group that can be graded."""
        group = item.group or ()
        if id(group) not in self._gradable:
            self._gradable[id(group)] = tuple(one for one in group if not why_ungradable(one))
        gradable = self._gradable[id(group)]
        ids = [one.id for one in gradable]
        if item.trace.id not in ids:
            return _Slot(method, None, "the trace is not in the group that came with it")
        key = (method.name, *ids)
        if key not in self._groups:
            self._groups[key] = self._call(method, item, group=gradable)
            self.lanes.append((self._groups[key],))
        return _Slot(method, None, None, self._groups[key].at + ids.index(item.trace.id))

    def grades(self, outcomes: Sequence[Outcome]) -> list[list[Grade]]:
        return [
            [
                self._grade(
                    item, slot, Outcome(None, slot.reason) if slot.reason else outcomes[slot.at]
                )
                for slot in slots
            ]
            for item, slots in self._items
        ]

    def _grade(self, item: Item, slot: _Slot, outcome: Outcome) -> Grade:
        method, problem = slot.method, item.problem
        rests_on_truth = outcome.value is not None and method.needs_truth and problem is not None
        given = Grade(
            trace_id=item.trace.id,
            reward=method.name,
            value=outcome.value,
            weight=method.mark.weight,
            reason=outcome.reason,
            grader=self.environment.digest,
            problem_id=self._problem_id(problem),
            span_id=slot.span_id,
            confirmed_by=problem.truth_from if rests_on_truth and problem else None,
        )
        if "judge" not in method.arguments:
            return given
        return judged(given, item.judge, outcome.judged)

    def _problem_id(self, problem: Problem | None) -> str | None:
        if problem is not None and id(problem) not in self._problem_ids:
            self._problem_ids[id(problem)] = problem.id
        return self._problem_ids[id(problem)] if problem is not None else None


def why_ungradable(trace: Trace) -> str | None:
    """Why a trace says nothing about its model; None = it has an answer to be judged."""
    if "failed_by" in trace.attributes:
        return f"the episode failed: {str(trace.attributes.get('failed'))[:500]}"
    calls = main_spans(trace)
    if calls and calls[-1].error:
        return f"the model call failed: {calls[-1].error[:500]}"
    answered = (span.call.choices[0] for span in reversed(calls) if span.call and span.call.choices)
    choice = next(answered, None)
    if choice is None:
        return "no answer was recorded"
    if not choice.finish_reason and trace.origin in ("production", "rollout", "evaluation"):
        return "the answer was cut: its end is not recorded"
    if any(isinstance(part, Truncated) for part in choice.message.parts):
        return "the answer was over the size limit and is not whole"
    return None


def _spans(method: Method, trace: Trace) -> Sequence[Span | None]:
    if method.mark.kind != "step_reward":
        return (None,)
    if method.mark.of == "model":
        return model_spans(trace)
    spans = sorted(trace.spans, key=lambda span: (span.start or 0, span.id))
    return [span for span in spans if method.mark.of == "any" or span.kind == "tool"]


def _why_not(method: Method, item: Item) -> str | None:
    if method.needs_truth and item.problem is None:
        return item.unposed or "no problem is known for this trace"
    if method.needs_truth and item.problem is not None and item.problem.answer is None:
        return str(item.problem.attributes.get("truth", "no known answer"))
    if "group" in method.arguments and not item.group:
        return "needs all traces of its problem"
    if method.live and item.runtime is None:
        return "needs the runtime of its episode, which is there only while it runs"
    if "judge" in method.arguments and item.judge is None:
        return "no judge is configured ([judge] in flywheel.toml)"
    return None
