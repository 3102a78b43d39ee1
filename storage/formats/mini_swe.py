"""mini-swe-agent runs: {info, messages, trajectory_format}, or the bare list of messages.

Each assistant message carries its response with usage and cost; commands are tool calls, or one
fenced block in the text, whose output is the next message. Totals stand on the agent span.
"""

import re
from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Message, ToolCall, ToolResult

from .completed import completed, cost_of
from .episode import Episode, imported, told
from .messages import name_of, read_message, read_sampling
from .nested import fields_of
from .parsed import Context, Parsed, Rest
from .parts import arguments_text
from .times import nanoseconds

SOURCE = "import:mini_swe"

_ROW = frozenset(("info", "messages", "trajectory_format", "instance_id"))
_INFO = frozenset(("model_stats", "exit_status", "submission", "config"))
_ANSWER = frozenset(("response", "cost", "timestamp", "actions"))
_RAN = frozenset(("raw_output", "timestamp", "returncode", "exception_info"))
_SAID = ("extra", "provider_specific_fields")
_block = re.compile(r"```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)\n```", re.DOTALL)
_OUTPUT = "<returncode>"
_LEAST = 3


def recognise(sample: object) -> bool:
    if isinstance(sample, list):
        return _is_bare(sample)
    if not isinstance(sample, dict) or not isinstance(sample.get("messages"), list):
        return False
    if str(sample.get("trajectory_format", "")).startswith("mini-swe-agent"):
        return True
    info = sample.get("info")
    return isinstance(info, dict) and "model_stats" in info and "exit_status" in info


def read(row: dict[str, Any] | list[Any], context: Context) -> Parsed:
    envelope = row if isinstance(row, dict) else {"messages": row}
    rest = context.rest()
    found = envelope.get("messages")
    info = fields_of(envelope.get("info"))
    model = fields_of(fields_of(info.get("config")).get("model"))
    named = model.get("model_name")
    asked = fields_of(model.get("model_kwargs"))
    episode = Episode(model=named if isinstance(named, str) else None)
    if asked:
        others = {k: v for k, v in asked.items() if k not in ("temperature", "top_p", "max_tokens")}
        episode.sampling = read_sampling(asked, others)
    _root(episode, envelope, info, rest)
    raws = [one for one in found if not _is_exit(one)] if isinstance(found, list) else found
    if not isinstance(raws, list):
        raise BadRecord(f"is {name_of(raws)}, not a list of messages", field="messages")
    messages = tuple(
        read_message(_plain(one), rest, f"messages[{at}]") for at, one in enumerate(raws)
    )
    _run(episode, raws, messages, rest)
    problem = envelope.get("instance_id")
    said = digest(found)
    external = f"{problem}:{said}" if isinstance(problem, str) and problem else said
    return Parsed([imported(SOURCE, external, episode.spans(), context)], [], rest.counts)


def _root(episode: Episode, envelope: dict[str, Any], info: dict[str, Any], rest: Rest) -> None:
    own: dict[str, Any] = dict(fields_of(info.get("model_stats")))
    found = envelope.get("messages")
    exits = [one for one in found if _is_exit(one)] if isinstance(found, list) else []
    for one in exits:
        rest.put_others(fields_of(one.get("extra")), _INFO, "exit")
        own |= {key: one["extra"][key] for key in _INFO & fields_of(one.get("extra")).keys()}
        if one.get("content") not in (None, "", own.get("submission")):
            rest.put("exit.content", one["content"])
    for key in ("exit_status", "submission"):
        if info.get(key) is not None:
            own[key] = rest.bounded(info[key])
    rest.put_others(envelope, _ROW, "")
    rest.put_others(info, _INFO, "info")
    rest.put("info.config", info.get("config"))
    ended = own.get("exit_status")
    episode.parents = (
        episode.span(
            "agent",
            "mini-swe-agent",
            id="agent",
            attributes={**own, **rest.take()},
            error=None if ended in (None, "", "Submitted") else str(ended),
        ),
    )


def _run(episode: Episode, raws: list[Any], messages: tuple[Message, ...], rest: Rest) -> None:
    answers: dict[int, dict[str, Any]] = {}
    ran: dict[str, dict[str, Any]] = {}
    for at, (raw, message) in enumerate(zip(raws, messages, strict=True)):
        extra = fields_of(raw.get("extra"))
        if message.role == "assistant":
            known = completed(extra.get("response"), message, rest, "messages.extra.response")
            rest.put_others(extra, _ANSWER, "messages.extra")
            rest.put("messages.provider_specific_fields", raw.get("provider_specific_fields"))
            answers[at] = {
                **known,
                "cost_usd": cost_of(extra.get("cost")),
                "end": nanoseconds(extra.get("timestamp")),
                "attributes": rest.take(),
                "commands": _commands(raws, messages, at, rest),
            }
        elif isinstance(raw.get("tool_call_id"), str):
            ran[raw["tool_call_id"]] = _of_run(extra, rest)
        else:
            rest.put("messages.extra", raw.get("extra"))
    for id, fields in ran.items():  # a tool begins when its call has come
        fields["start"] = _asked_at(id, messages, answers)
    told(episode, messages, answers, ran)


def _commands(
    raws: list[Any], messages: tuple[Message, ...], at: int, rest: Rest
) -> list[tuple[ToolCall, dict[str, Any]]]:
    """The one fenced command of a text, and the output that the next message holds."""
    message = messages[at]
    blocks = [] if message.tool_calls else _block.findall(message.text)
    if len(blocks) != 1:
        return []
    result, fields = None, dict[str, Any]()
    if at + 1 < len(messages) and messages[at + 1].role == "user":
        result = ToolResult(content=messages[at + 1].text)
        fields = _of_run(fields_of(raws[at + 1].get("extra")), rest)
    call = ToolCall(name="bash", arguments=arguments_text({"command": blocks[0]}))
    return [(call, {"result": result, **fields})]


def _of_run(extra: dict[str, Any], rest: Rest) -> dict[str, Any]:
    """What is known of a command's run; its raw output is what the message shows."""
    rest.put_others(extra, _RAN, "messages.extra")
    own = rest.take()
    if isinstance(extra.get("returncode"), int):
        own["returncode"] = extra["returncode"]
    if extra.get("raw_output"):
        own["raw_output"] = rest.bounded(extra["raw_output"])
    failed = extra.get("exception_info")
    return {
        "end": nanoseconds(extra.get("timestamp")),
        "attributes": own,
        "error": failed if isinstance(failed, str) and failed else None,
    }


def _asked_at(
    id: str, messages: tuple[Message, ...], answers: dict[int, dict[str, Any]]
) -> int | None:
    for at, known in answers.items():
        if any(call.id == id for call in messages[at].tool_calls):
            end = known.get("end")
            return end if isinstance(end, int) else None
    return None


def _plain(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if key not in _SAID}


def _is_exit(message: object) -> bool:
    return isinstance(message, dict) and message.get("role") == "exit"


def _is_bare(sample: list[Any]) -> bool:
    """A list of messages in which commands stand in fences and outputs answer them."""
    if len(sample) < _LEAST or not all(
        isinstance(one, dict) and isinstance(one.get("role"), str) for one in sample[:8]
    ):
        return False
    texts = [one.get("content") for one in sample[:8]]
    said = [text for text in texts if isinstance(text, str)]
    return any(_block.search(text) for text in said) and any(
        text.lstrip().startswith(_OUTPUT) for text in said
    )
