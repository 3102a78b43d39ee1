"""Rows of plain fields: a prompt, an answer, and what else stands beside them.

The fields are found under their usual names, or under those that the options give.
"""

from typing import Any

from environments.tasksets.contract import Given, Options, Source
from environments.tasksets.messages import prompt_of, tools_of
from environments.tasksets.rows import Row, side_named
from flywheel.errors import BadRecord
from flywheel.records import Problem

PROMPTS = ("messages", "prompt", "question")
"""Where a prompt is looked for, in this order."""
NO_ANSWER = "the set states no answer"


class Fields(Options):
    """Names of a row's fields, where they are not called so."""

    prompt: str | None = None
    """A text or a list of messages. None = the first of messages, prompt, question."""
    answer: str = "answer"
    tools: str = "tools"
    id: str = "id"
    slice: str = "slice"
    split: str = "split"
    user: str = "user"
    conversation: str = "conversation"


def fit(row: Row, source: Source) -> Given:
    names: Fields = source.options
    value = row.value
    _check_named(names, value)
    prompt = names.prompt or next((name for name in PROMPTS if name in value), "prompt")
    if prompt not in value:
        known = ", ".join(map(str, list(value)[:12]))
        reason = f"is missing; the row has {known}: name the field (options.prompt)"
        raise BadRecord(reason, field=prompt)
    used = {prompt, *names.model_dump(exclude={"prompt", "system", "own_split"}).values()}
    answer = value.get(names.answer)
    rest = {str(key): one for key, one in value.items() if key not in used and one is not None}
    return Given(
        problem(
            source,
            prompt_of(value[prompt], prompt, names.system),
            answer,
            tools=tools_of(value.get(names.tools), names.tools),
            slice=_text(value, names.slice) or "",
            user=_text(value, names.user),
            conversation=_text(value, names.conversation),
            attributes=_named(value, names.id) | ({"row": rest} if rest else {}),
        ),
        side_named(value.get(names.split), names.split) or row.side,
    )


def problem(
    source: Source,
    messages: tuple[Any, ...],
    answer: Any,
    *,
    why_none: str = NO_ANSWER,
    attributes: dict[str, Any] | None = None,
    **others: Any,
) -> Problem:
    """A problem of the environment, with the reason beside an answer that is None."""
    reason = {"truth": why_none} if answer is None else {}
    return Problem(
        environment=source.environment.name,
        messages=messages,
        answer=answer,
        truth_from=None if answer is None else "ground_truth",
        attributes=(attributes or {}) | reason,
        **others,
    )


def require(value: dict[str, Any], key: str, kind: type, what: str) -> Any:
    """
    Raises:
        BadRecord: the field is missing or of another type; `what` says what belongs there.
    """
    found = value.get(key)
    if not isinstance(found, kind):
        is_ = "is missing" if found is None else f"is {type(found).__name__}"
        raise BadRecord(f"{is_}: {what}", field=key)
    return found


def _check_named(names: Fields, value: dict[str, Any]) -> None:
    for key in ("prompt", "answer"):
        field = getattr(names, key)
        if key in names.model_fields_set and field is not None and field not in value:
            raise BadRecord(f"is missing, and options.{key} names it", field=field)


def _text(value: dict[str, Any], field: str) -> str | None:
    found = value.get(field)
    if found is None:
        return None
    if not isinstance(found, str | int):
        raise BadRecord(f"is {type(found).__name__}, not text", field=field)
    return str(found)


def _named(value: dict[str, Any], field: str) -> dict[str, Any]:
    return {} if value.get(field) is None else {"id": value[field]}
