"""Echo: what the environment answered is learnt too, beside what the answers earned.

Action tokens are GRPO's. What tools and users said in return weighs `rl.echo` in "ce", which has a
denominator of its own: even rollouts that earned nothing tell how the environment behaves. Only the
words of those messages are learnt, not headers or control tokens, which would end or begin a turn.
(Shrivastava et al. 2026, "ECHO", arXiv 2605.24517.)
"""

import itertools
from collections.abc import Sequence

import msgspec

from flywheel.errors import BadRecord
from flywheel.records import Message, Trace
from trainer.algorithms.contract import Context, Group, Prepared, Rollout
from trainer.algorithms.fitness import check_path
from trainer.algorithms.groups import failure
from trainer.algorithms.policy import ZERO, joined, judge, policy_sample
from trainer.paths import Path, sample_of
from trainer.render import Rendering
from trainer.samples import Sample

UNHEARD = "environment_turns_unknown"
"""Counted: what came between two calls could not be told apart from the template around it."""
OTHERS = ("tool", "user", "function")
"""Roles of those who answer an action."""


def echo(groups: Sequence[Group], context: Context) -> Prepared:
    return joined([_prepared(group, context) for group in groups])


def _prepared(group: Group, context: Context) -> Prepared:
    outcome = judge(group, context)
    acting = {} if outcome.even else {one.rollout.trace.id: one for one in outcome.judged}
    parts = [Prepared((), outcome.refused, {ZERO: 1} if outcome.even else {})]
    for rollout in group.rollouts:
        if failure(rollout.trace) is None:
            judged = acting.get(rollout.trace.id)
            given = judged.advantages if judged else None
            parts += [_path(group, rollout, at, given, context) for at in range(len(rollout.paths))]
    return joined(parts)


def _path(
    group: Group,
    rollout: Rollout,
    at: int,
    given: dict[str, float | None] | None,
    context: Context,
) -> Prepared:
    """One path's sample: its actions where they have advantages, and what was said in return."""
    path, earlier = rollout.paths[at], rollout.paths[:at]
    acted: Sample | None = None
    refused: tuple[tuple[str, str], ...] = ()
    try:
        check_path(path, context.rendering, context.settings.micro_tokens)
    except BadRecord as error:
        return Prepared((), ((path.trace_id, error.reason),))
    try:
        acted = policy_sample(group, path, given, context) if given is not None else None
    except BadRecord as error:
        refused = ((path.trace_id, error.reason),)
    heard, unheard = heard_in(path, rollout.trace, context.rendering)
    shared = max((_shared(path, one) for one in earlier), default=0)
    heard[:shared] = [False] * shared
    try:
        sample = _with_heard(group, path, acted, heard, context.settings.rl.echo)
    except BadRecord as error:
        return Prepared((), tuple(dict.fromkeys((*refused, (path.trace_id, error.reason)))))
    return Prepared((sample,) if sample else (), refused, {UNHEARD: unheard} if unheard else {})


def _with_heard(
    group: Group, path: Path, acted: Sample | None, heard: Sequence[bool], weight: float
) -> Sample | None:
    if not weight or not any(heard):
        return acted
    base = acted or sample_of(path, row_id=path.trace_id)
    before = acted.mask if acted else (False,) * len(heard)
    weights = acted.weights if acted else {}
    return msgspec.structs.replace(
        base,
        mask=tuple(one or other for one, other in zip(before, heard, strict=True)),
        weights={**weights, "ce": tuple(weight if one else 0.0 for one in heard)},
        group_id=group.id,
    )


def heard_in(path: Path, trace: Trace, rendering: Rendering) -> tuple[list[bool], int]:
    """Which of the path's ids are what others said in return to its calls, and between how many
    calls that is not known."""
    calls = {span.id: span.call for span in trace.spans if span.call is not None}
    heard, unknown = [False] * len(path.token_ids), 0
    for before, after in zip(path.segments, path.segments[1:], strict=False):
        if after.start == before.end:
            continue
        call = calls[after.span_id]
        found = rendering.heard(
            path.token_ids[: before.end],
            returned(call.input),
            call.tools or (),
            prompt_length=before.start,
        )
        if found is None or tuple(found[0]) != path.token_ids[: after.start]:
            unknown += 1
        else:
            heard[before.end : after.start] = found[1][before.end :]
    return heard, unknown


def _shared(path: Path, earlier: Path) -> int:
    """How many of its first ids an earlier path has too, and learns."""
    pairs = zip(path.token_ids, earlier.token_ids, strict=False)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
    return sum(1 for _ in alike)


def returned(messages: Sequence[Message]) -> list[Message]:
    """What came after the last answer."""
    found: list[Message] = []
    for message in reversed(messages):
        if message.role not in OTHERS:
            break
        found.insert(0, message)
    return found
