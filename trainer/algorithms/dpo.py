"""DPO: of two answers to one prompt, the preferred one becomes likelier than the other.

Rafailov et al. 2023, arXiv 2305.18290. A pair is two Samples of one `pair_id`; the sign of their
advantages says which is which: +1 chosen, -1 rejected. The very tokens that were sampled are taken
where they are known, so that what is made less likely is what the model says. The logprobs of the
start weights the loop fills in (`reference_logprobs`). With `train.chosen_ce` the chosen answer is
learnt as well, which keeps both from becoming unlikely (Pang et al. 2024, "Iterative Reasoning
Preference Optimization", arXiv 2404.19733, eq. 1). Invariant: both of a pair, or neither.
"""

from collections.abc import Sequence

import msgspec

from flywheel.errors import BadRecord
from flywheel.rows import TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import answered, compared, rendered
from trainer.render import Rendering
from trainer.samples import Sample


def dpo(rows: list[TrainingRow], context: Context) -> Prepared:
    samples: list[Sample] = []
    refused: list[tuple[str, str]] = []
    for pair_id, pair in _pairs(rows).items():
        try:
            samples += _compared(pair_id, pair, context.rendering, context.settings.chosen_ce)
        except BadRecord as error:
            refused += [(row.id, error.reason) for row in pair]
    return Prepared(tuple(samples), tuple(refused))


def _pairs(rows: Sequence[TrainingRow]) -> dict[str, list[TrainingRow]]:
    """In the order of their first rows; a row in no pair stands alone."""
    found: dict[str, list[TrainingRow]] = {}
    for row in rows:
        found.setdefault(row.pair_id or row.id, []).append(row)
    return found


def _compared(
    pair_id: str, pair: list[TrainingRow], rendering: Rendering, chosen_ce: float
) -> list[Sample]:
    """
    Raises:
        BadRecord: they are not a chosen and a rejected answer to the same prompt, or one of them
            must not be trained on.
    """
    sides = {row.label: row for row in pair}
    if len(pair) != 2 or set(sides) != {"chosen", "rejected"}:
        named = ", ".join(sorted(str(row.label) for row in pair))
        raise BadRecord(f"a pair is a chosen and a rejected answer, not: {named}")
    rows = (sides["chosen"], sides["rejected"])
    made = [answered(row, rendering) for row in rows]
    if _prompt(made[0]) != _prompt(made[1]):  # one of them was laid out otherwise
        made = [rendered(row, rendering) for row in rows]
    if _prompt(made[0]) != _prompt(made[1]):
        raise BadRecord("the two answers are to different prompts")
    if made[0].token_ids == made[1].token_ids:
        raise BadRecord("the two answers are the same")
    chosen, rejected = (
        compared(sample, "dpo", sign, weight=rows[0].weight, pair_id=pair_id)
        for sample, sign in zip(made, (1.0, -1.0), strict=True)
    )
    if chosen_ce > 0:
        learnt = tuple(chosen_ce * weight for weight in chosen.weights["dpo"])
        chosen = msgspec.structs.replace(chosen, weights={**chosen.weights, "ce": learnt})
    return [chosen, rejected]


def _prompt(sample: Sample) -> tuple[int, ...]:
    return sample.token_ids[: sample.targets[0]]
