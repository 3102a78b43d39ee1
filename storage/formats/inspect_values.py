"""Values of Inspect logs: attachments put back, messages, tools, settings and usage as records.

Long texts stand once per sample, under their hash, and `attachment://HASH` (older: `tc://HASH`)
wherever they were. What enters are values of a sample; what leaves are values without references,
bounded in size together, whatever repeats them.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Message, Sampling, Usage

from .messages import name_of, read_messages, read_sampling
from .nested import fields_of
from .parsed import Rest
from .usage import count, settle

_REFERENCES = ("attachment://", "tc://")
MOST_RESTORED = 64 << 20
"""Characters that references of one sample are replaced by, all together."""
_ASKED = ("temperature", "top_p", "top_k", "max_tokens", "seed")
_CALL = frozenset(("id", "function", "arguments", "type"))
_SAID = frozenset(("id", "source", "model"))
"""Keys of a message that say where in the log it is from."""


class Attachments:
    """The long texts of one sample."""

    def __init__(self, *tables: object) -> None:
        self.texts: dict[str, str] = {}
        for table in tables:
            for key, text in fields_of(table).items():
                if isinstance(text, str):
                    self.texts[key] = text
        self.left = MOST_RESTORED

    def restored(self, value: Any) -> Any:
        """`value` with its references replaced; one that leads nowhere stays."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self.restored(one) for one in value]
        if isinstance(value, dict):
            return {key: self.restored(one) for key, one in value.items()}
        return value

    def _text(self, value: str) -> str:
        for prefix in _REFERENCES:
            if value.startswith(prefix):
                found = self.texts.get(value[len(prefix) :])
                if found is None or len(found) > self.left:
                    return value
                self.left -= len(found)
                return found
        return value


def read_said(
    values: object, attachments: Attachments, rest: Rest, path: str
) -> tuple[Message, ...]:
    """A list of Inspect's messages, or the text of one."""
    values = attachments.restored(values)
    if isinstance(values, str):
        return read_messages([{"role": "user", "content": values}], rest, path)
    if not isinstance(values, list):
        raise BadRecord(f"is {name_of(values)}, not a list of messages", field=path)
    return read_messages([_plain(one, rest, path) for one in values], rest, path)


def read_config(value: object, tool_choice: object) -> Sampling:
    """Generation settings; what has no field of its own stands under `other`."""
    config = {**fields_of(value), "tool_choice": tool_choice}
    others = {
        key: one for key, one in config.items()
        if key not in (*_ASKED, "stop_seqs") and one is not None
    }  # fmt: skip
    return read_sampling({**config, "stop": config.get("stop_seqs")}, others)


def read_counts(value: object, answered: bool) -> Usage:
    """Usage as Inspect keeps it for every vendor; its total says what is counted inside what."""
    said = fields_of(value)
    if not said:
        return Usage(reason="not reported")
    return settle(
        {
            "given": count(said.get("input_tokens")),
            "output": count(said.get("output_tokens")),
            "cached": count(said.get("input_tokens_cache_read")),
            "created": count(said.get("input_tokens_cache_write")),
            "reasoning": count(said.get("reasoning_tokens")),
            "total": count(said.get("total_tokens")),
        },
        answered=answered,
    )


def _plain(message: Any, rest: Rest, path: str) -> Any:
    """A message in OpenAI's shape."""
    if not isinstance(message, dict):
        return message
    plain = {key: value for key, value in message.items() if key not in _SAID}
    for key in _SAID & message.keys():
        rest.tally(f"{path}.{key}")
    calls = plain.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [_call(one, rest, path) for one in calls]
    if plain.get("role") == "tool" and "function" in plain:
        plain["name"] = plain.pop("function")
    if isinstance(plain.get("content"), list):
        plain["content"] = [_part(one) for one in plain["content"]]
    return plain


def _call(value: Any, rest: Rest, path: str) -> Any:
    if not isinstance(value, dict) or isinstance(value.get("function"), dict):
        return value
    rest.put_others({k: v for k, v in value.items() if k != "view"}, _CALL, f"{path}.tool_calls")
    if "view" in value:
        rest.tally(f"{path}.tool_calls.view")
    function = {"name": value.get("function"), "arguments": value.get("arguments")}
    return {"id": value.get("id"), "type": "function", "function": function}


def _part(value: Any) -> Any:
    """Reasoning is called by its own name; one that is hidden has a summary."""
    if not isinstance(value, dict) or value.get("type") != "reasoning":
        return value
    text = value.get("reasoning")
    if value.get("redacted") and value.get("summary"):
        text = value["summary"]
    return {"type": "reasoning", "text": text, "signature": value.get("signature")}
