"""NeMo Gym's rows: what its Responses call is made of, and what its verifier compares with.

`responses_create_params` has `input` (a text or a list of items) and perhaps `instructions` and
`tools`. The truth is each verifier's own: `expected_answer` or `verifier_metadata`, or the field
that the options name. Sampling that a row asks for is the run's to decide, and is left.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from environments.tasksets.contract import Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import messages_of, prompt_of, tools_of
from environments.tasksets.rows import Row, shaped
from flywheel.errors import BadRecord
from flywheel.records import Message, Reasoning, ToolCall, ToolResult, say

PARAMS = "responses_create_params"
ANSWERS = ("expected_answer", "verifier_metadata")


class NemoGym(Options):
    answer: str | None = None
    """None = the first of expected_answer, verifier_metadata."""


def fit(row: Row, source: Source) -> Given:
    params = require(row.value, PARAMS, dict, "{input, tools}")
    options: NemoGym = source.options
    if options.answer is not None and options.answer not in row.value:
        raise BadRecord("is missing, and options.answer names it", field=options.answer)
    name = options.answer or next((one for one in ANSWERS if one in row.value), ANSWERS[0])
    rest = {key: one for key, one in row.value.items() if key not in (PARAMS, name)}
    return Given(
        problem(
            source,
            _messages(params, options.system),
            row.value.get(name),
            why_none=f"the row has no {name}: name its truth (options.answer)",
            tools=tools_of(params.get("tools"), f"{PARAMS}.tools"),
            attributes={"row": rest} if rest else {},
        ),
        row.side,
    )


def _messages(params: Mapping[str, Any], system: str) -> tuple[Message, ...]:
    field = f"{PARAMS}.input"
    said = "\n\n".join(part for part in (system, params.get("instructions") or "") if part)
    items = params.get("input")
    if not isinstance(items, list):
        return prompt_of(items, field, said)
    messages = tuple(_item(one, f"{field}[{at}]") for at, one in enumerate(items))
    if not messages:
        raise BadRecord("is empty: a problem needs a prompt", field=field)
    return (say("system", said), *messages) if said else messages


def _item(item: Any, field: str) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message":
        return messages_of([item], field)[0]
    if kind == "function_call" and isinstance(item.get("name"), str):
        arguments = str(item.get("arguments") or "{}")
        call = ToolCall(id=item.get("call_id"), name=item["name"], arguments=arguments)
        return Message(role="assistant", parts=(call,))
    if kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
        return Message(role="tool", parts=(ToolResult(content=text, id=item.get("call_id")),))
    if kind == "reasoning":
        said = (one.get("text", "") for one in item.get("summary") or () if isinstance(one, dict))
        return Message(role="assistant", parts=(Reasoning(text="\n".join(said)),))
    known = "message, function_call, function_call_output or reasoning"
    raise BadRecord(f"is of type {str(kind)[:40]!r}: {known}", field=field)


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and PARAMS in row


READER = Reader(NemoGym, recognises, shaped(fit))
