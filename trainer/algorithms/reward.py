"""A reward model that speaks: it is asked whether an answer is good, and learns to say Yes or No.

Zhang et al. 2024, arXiv 2408.15240, section 3.1: cross-entropy on the verdict, after the answer and
one fixed question (`environments.judges.verifier`). Only the verdict's first token is trained: it
is where the two part, and all that is read. Both verdicts weigh the same in sum, so that 0.5 means
that either is as likely, however many good answers there happened to be.
"""

from functools import partial

from environments.judges.verifier import NO, YES, asked
from flywheel.errors import BadRecord
from flywheel.records import say
from flywheel.rows import GOOD, TrainingRow
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.rows import ENDED, balanced, prepare
from trainer.render import Rendering
from trainer.samples import Sample


def reward(rows: list[TrainingRow], context: Context) -> Prepared:
    return balanced(prepare(rows, partial(_sample, rendering=context.rendering)), rows)


def _sample(row: TrainingRow, rendering: Rendering) -> Sample:
    if row.label is None:
        raise BadRecord("nobody said whether it is good")
    if row.finish_reason not in (None, *ENDED):
        raise BadRecord(f"its answer did not end: finish reason {row.finish_reason}")
    good = row.label in GOOD
    prompt, yes, no = verdicts(row, rendering)
    before = len(prompt)
    return Sample(
        row_id=row.id,
        trace_id=row.trace_id,
        group_id=row.problem_id,
        token_ids=(*prompt, yes if good else no),
        mask=(*(False,) * before, True),
        weights={"ce": (*(0.0,) * before, row.weight)},
        template_digest=rendering.template_digest,
    )


def verdicts(row: TrainingRow, rendering: Rendering) -> tuple[list[int], int, int]:
    """The ids up to the verdict, and the first token of Yes and of No.

    Raises:
        BadRecord: the tokenizer begins both alike, or the row cannot be rendered.
    """
    conversation = asked(row.messages, row.completion)
    prompts, firsts = [], []
    for verdict in (YES, NO):
        ids, mask = rendering.render_sample(conversation, say("assistant", verdict), row.tools)
        at = mask.index(True)
        prompts.append(ids[:at])
        firsts.append(ids[at])
    if firsts[0] == firsts[1] or prompts[0] != prompts[1]:
        raise BadRecord(f"the tokenizer does not tell {YES} from {NO} by the first token")
    return prompts[0], firsts[0], firsts[1]
