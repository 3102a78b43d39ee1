"""Preferences that the gateway was told: which of two responses is the better, as pairs of rows.

Enters a turn; leave pairs. An answer is named by its trace, by a response in it, or by its number
among the answers of one response. Invariant: both answers of a pair answer one prompt. What people
named that cannot be a pair is left out, and noted beside the run with its reason.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from flywheel.ids import digest
from flywheel.records import Span, model_spans
from flywheel.rows import TrainingRow
from storage.preferred import Answer, preferences
from tasks.answered import Answered, call_row, graded, row_of
from tasks.turns import Turn, home, note, project_of


def stated(turn: Turn) -> Iterator[tuple[TrainingRow, TrainingRow]]:
    """The better answer and the worse one of each pair."""
    from storage.queries import traces

    found = preferences(home(), project_of(turn).traffic, until=turn.sequence)
    ids = sorted({side.trace_id for pair in found for side in pair})
    batches = graded(turn, traces(home(), ids=ids, snapshot=turn.sequence)) if ids else ()
    known = {one.trace.id: one for batch in batches for one in batch}
    left: Counter[str] = Counter()
    for pair in found:
        better, worse = (_row(turn, known.get(side.trace_id), side) for side in pair)
        if isinstance(better, str) or isinstance(worse, str):
            left[better if isinstance(better, str) else str(worse)] += 1
        elif _asked(better) != _asked(worse):
            left["the two answer different prompts"] += 1
        else:
            yield (
                msgspec.structs.replace(better, confirmed_by="feedback"),
                msgspec.structs.replace(worse, confirmed_by="feedback"),
            )
    if found and not turn.looked:
        note(turn, "stated", {"preferences": len(found), "left_out": dict(left.most_common())})


def _row(turn: Turn, answered: Answered | None, side: Answer) -> TrainingRow | str:
    """Or why there is none."""
    if answered is None:
        return "an answer came after the turn began"
    span = _span(answered, side.handle)
    row = row_of(turn, answered) if span is None else call_row(turn, answered, span, None)
    if row is None:
        return "an answer that cannot be trained on"
    if side.choice == 0:
        return row
    call = span.call if span is not None else None
    if call is None or len(call.choices) <= side.choice:
        return "a number beyond the answers that its response has"
    choice = call.choices[side.choice]
    return msgspec.structs.replace(
        row, completion=choice.message, tokens=choice.tokens, finish_reason=choice.finish_reason
    )


def _span(answered: Answered, handle: str) -> Span | None:
    """The response of that id; None = the id is the trace's."""
    for span in model_spans(answered.trace):
        said = (span.attributes.get("response_id"), span.attributes.get("gen_ai.response.id"))
        if handle in (span.id, *said):
            return span
    return None


def _asked(row: TrainingRow) -> str:
    return digest(row.messages, row.tools)
