"""From a dataset's row to a Sample, in the two ways there are: as it was sampled, or rendered.
Also what answers that are preferred, or not, have in common.

All refuse, with the reason, what must not be trained on: cut answers, truncated messages, tokens
laid out by another template or tokenizer, answers without their stop token.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from flywheel.errors import BadRecord
from flywheel.rows import GOOD, TrainingRow
from trainer.algorithms.contract import Prepared
from trainer.algorithms.fitness import check_known
from trainer.render import Rendering
from trainer.samples import Sample

ENDED = ("stop", "tool_calls")
"""Finish reasons of an answer that the model itself ended."""


def prepare(rows: list[TrainingRow], make: Callable[[TrainingRow], Sample]) -> Prepared:
    """Makes a Sample of each row; a row that cannot be one is named with its reason."""
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for row in rows:
        try:
            samples.append(make(row))
        except BadRecord as error:
            refused.append((row.id, error.reason))
    return Prepared(tuple(samples), tuple(refused))


def sampled(row: TrainingRow, rendering: Rendering, *, cut: bool = False) -> Sample:
    """The exact tokens that the policy saw and said; `cut`: also where the answer did not end.

    Raises:
        BadRecord: the row has none, or they must not be trained on.
    """
    tokens = row.tokens
    if tokens is None:
        raise BadRecord("has no sampled tokens")
    if row.finish_reason not in (*ENDED, *(("length",) if cut else ())):
        raise BadRecord(f"its answer did not end: finish reason {row.finish_reason}")
    if not tokens.prompt_ids or not tokens.completion_ids:
        raise BadRecord("its prompt or its answer has no tokens")
    ids = (*tokens.prompt_ids, *tokens.completion_ids)
    check_known(ids, tokens.template_digest, tokens.tokenizer_digest, rendering)
    before, said = len(tokens.prompt_ids), len(tokens.completion_ids)
    logprobs = tokens.logprobs
    if logprobs is not None and len(logprobs) != said:
        raise BadRecord(f"has {len(logprobs)} logprobs for {said} sampled tokens")
    version = tokens.policy_versions[-1] if len(tokens.policy_versions) == 1 else None
    return _sample(
        row,
        rendering,
        ids,
        [False] * before + [True] * said,
        ended=row.finish_reason in ENDED,
        behaviour_logprobs=None if logprobs is None else (0.0,) * before + tuple(logprobs),
        policy_versions=(None,) * before + (version,) * said,
    )


def rendered(row: TrainingRow, rendering: Rendering) -> Sample:
    """The row's messages, laid out by the template.

    Raises:
        BadRecord: its answer did not end, or a message is not whole or not text.
    """
    if row.finish_reason not in (None, *ENDED):
        raise BadRecord(f"its answer did not end: finish reason {row.finish_reason}")
    token_ids, mask = rendering.render_sample(row.messages, row.completion, row.tools)
    return _sample(row, rendering, token_ids, mask)


def answered(row: TrainingRow, rendering: Rendering) -> Sample:
    """As it was sampled where its tokens are of this template and tokenizer, else rendered.

    Raises:
        BadRecord: as `rendered`, or as `sampled` for all other reasons.
    """
    tokens = row.tokens
    ours = tokens is not None and (tokens.template_digest, tokens.tokenizer_digest) == (
        rendering.template_digest,
        rendering.tokenizer_digest,
    )
    return sampled(row, rendering) if ours else rendered(row, rendering)


def compared(
    sample: Sample, component: str, sign: float, *, weight: float, pair_id: str | None = None
) -> Sample:
    """The sample as a loss over preferences reads it: `sign` 1 = better, -1 = worse."""
    return msgspec.structs.replace(
        sample,
        weights={component: tuple(weight if wanted else 0.0 for wanted in sample.mask)},
        advantages=tuple(sign if wanted else 0.0 for wanted in sample.mask),
        pair_id=pair_id,
    )


def balanced(prepared: Prepared, rows: Sequence[TrainingRow]) -> Prepared:
    """Good and bad answers, of those that can be trained on, weigh the same in sum: the rarer kind
    is weighed up, the other keeps its rows' weights."""
    good = {row.id: row.label in GOOD for row in rows}
    sums = dict.fromkeys((True, False), 0.0)
    for sample in prepared.samples:
        sums[good[sample.row_id]] += _heaviest(sample)
    most = max(sums.values())
    samples = (
        msgspec.structs.replace(
            sample,
            weights={
                name: tuple(one * most / sums[good[sample.row_id]] for one in values)
                for name, values in sample.weights.items()
            },
        )
        for sample in prepared.samples
    )
    return replace(prepared, samples=tuple(samples))


def _heaviest(sample: Sample) -> float:
    return max(max(values) for values in sample.weights.values())


def _sample(
    row: TrainingRow,
    rendering: Rendering,
    token_ids: Sequence[int],
    mask: list[bool],
    *,
    ended: bool = True,
    behaviour_logprobs: tuple[float, ...] | None = None,
    policy_versions: tuple[str | None, ...] | None = None,
) -> Sample:
    trained = [token for token, wanted in zip(token_ids, mask, strict=True) if wanted]
    if not trained or (ended and trained[-1] not in rendering.stop_ids):
        raise BadRecord("its answer does not end with a stop token")
    if row.weight <= 0:
        raise BadRecord(f"its weight is {row.weight}")
    return Sample(
        row_id=row.id,
        trace_id=row.trace_id,
        rollout_id=row.trace_id if row.origin == "rollout" else None,
        group_id=row.problem_id,
        token_ids=tuple(token_ids),
        mask=tuple(mask),
        weights={"ce": tuple(row.weight if wanted else 0.0 for wanted in mask)},
        template_digest=rendering.template_digest,
        behaviour_logprobs=behaviour_logprobs,
        policy_versions=policy_versions,
    )
