"""What a teacher says of a student's own tokens: on-policy distillation's samples.

Enter: a group, whatever it earned, and messages that the teacher alone reads before the rest.
Leave: one Sample a path, whose sampled tokens weigh 1 in "distill" and carry the teacher's logprob
of the very ids that the student sampled. Invariant: both speak of one temperature, 1.
"""

from collections.abc import Sequence

import msgspec

from flywheel.errors import BadRecord, UsageError
from flywheel.records import Message
from trainer.algorithms.contract import Context, Group, Pair, Prepared
from trainer.algorithms.fitness import check_path, check_weighable
from trainer.algorithms.groups import failure
from trainer.paths import Path, sample_of
from trainer.render import Rendering
from trainer.samples import Sample


def taught(group: Group, context: Context, before: Sequence[Message] = ()) -> Prepared:
    """
    Raises:
        UsageError: there is no teacher.
    """
    if context.teacher is None:
        raise UsageError(
            f"{context.settings.algorithm} asks a teacher: name one in [train.teacher]"
        )
    paths: list[Path] = []
    pairs: list[Pair] = []
    refused: list[tuple[str, str]] = []
    for rollout in group.rollouts:
        if reason := failure(rollout.trace):
            refused.append((rollout.trace.id, reason))
            continue
        for path in rollout.paths:
            try:
                _check(path, context)
                pairs.append(_asked(path, before, context.rendering))
                paths.append(path)
            except BadRecord as error:
                refused.append((path.trace_id, error.reason))
    said = context.teacher(pairs) if pairs else []
    samples: list[Sample] = []
    for path, logprobs in zip(paths, said, strict=True):
        try:
            samples.append(_sample(group, path, logprobs, context.settings.rl.kl))
        except BadRecord as error:
            refused.append((path.trace_id, error.reason))
    return Prepared(tuple(samples), tuple(refused))


def _check(path: Path, context: Context) -> None:
    check_path(path, context.rendering, context.settings.micro_tokens)
    check_weighable(path)
    temperature = path.sampling.temperature if path.sampling else None
    if temperature not in (None, 1.0):
        raise BadRecord(
            f"it was sampled at temperature {temperature:g}; a teacher speaks of temperature 1: "
            "set train.rl.temperature = 1"
        )


def _asked(path: Path, before: Sequence[Message], rendering: Rendering) -> Pair:
    """From the first token that was sampled on, all is asked for in one pass."""
    start = path.mask.index(True)
    prompt = path.token_ids[:start]
    return (rendering.after(before, prompt) if before else prompt), path.token_ids[start:]


def _sample(group: Group, path: Path, logprobs: Sequence[float], kl: float) -> Sample:
    start = len(path.token_ids) - len(logprobs)
    if start != path.mask.index(True):
        raise BadRecord(f"the teacher gave {len(logprobs)} logprobs, not those it was asked for")
    said = (*(0.0,) * start, *logprobs)
    weights = {"distill": tuple(1.0 if kept else 0.0 for kept in path.mask)}
    if kl:
        weights["ref_kl"] = tuple(kl if kept else 0.0 for kept in path.mask)
    return msgspec.structs.replace(
        sample_of(path, row_id=path.trace_id),
        weights=weights,
        teacher_logprobs=tuple(
            one if kept else 0.0 for one, kept in zip(said, path.mask, strict=True)
        ),
        group_id=group.id,
    )
