"""A whole conversation, as fine-tuning rows hold it, as the model calls that made it.

Each run of assistant messages ends one call whose input is all before it; each call's parent is
the call before. Identity is the content's digest: rows' own ids ("1", "2") repeat in every file.
"""

from typing import Any

from flywheel.ids import digest
from flywheel.records import Choice, Message, ModelCall, Span, Trace, trace_id

from .parsed import Context

MOST_TURNS = 64
"""Assistant turns that get a call of their own; past it only the last does, since each call
repeats all before it."""


def conversation_trace(
    messages: tuple[Message, ...],
    tools: tuple[dict[str, Any], ...] | None,
    source: str,
    attributes: dict[str, Any],
    context: Context,
) -> Trace:
    """The trace of one row; `attributes` go on its last span."""
    said = digest(messages, tools)
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if len(answers) > MOST_TURNS:
        attributes["turns_without_a_span"] = len(answers) - 1
        answers = answers[-1:]
    spans: list[Span] = []
    for at in answers:
        parents = (spans[-1].id,) if spans else ()
        spans.append(_turn(messages[:at], messages[at], tools, _id(at), parents))
    if not answers or answers[-1] != len(messages) - 1:
        parents = (spans[-1].id,) if spans else ()
        spans.append(_turn(messages, None, tools, _id(len(messages)), parents))
    last = spans[-1]
    spans[-1] = Span(
        id=last.id,
        kind="model",
        name="chat",
        parents=last.parents,
        error=last.error,
        call=last.call,
        attributes=attributes,
    )
    return Trace(
        id=trace_id(context.project, source, said),
        project=context.project,
        source=source,
        external_id=said,
        origin="import",
        spans=tuple(spans),
        raw=context.raw,
    )


def _id(at: int) -> str:
    """Ids in the turns' own order, which is theirs where no times are."""
    return f"{at:06d}"


def _turn(
    before: tuple[Message, ...],
    answer: Message | None,
    tools: tuple[dict[str, Any], ...] | None,
    id: str,
    parents: tuple[str, ...],
) -> Span:
    choices = (Choice(message=answer),) if answer else ()
    return Span(
        id=id,
        kind="model",
        name="chat",
        parents=parents,
        error=None if answer else "the conversation ends without an answer",
        call=ModelCall(input=before, choices=choices, tools=tools),
    )
