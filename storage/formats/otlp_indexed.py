"""Messages that were flattened into indexed attributes, unfolded into OpenAI's shape.

`gen_ai.prompt.0.content` (OpenLLMetry) and `llm.input_messages.0.message.content`
(OpenInference) both become plain message objects. Order is the index's, whatever order the
attributes stand in; gaps in the indices close up.
"""

from dataclasses import dataclass, field
from typing import Any

from .nested import nested

_PREFIXES = ("gen_ai.prompt.", "gen_ai.completion.", "llm.request.functions.",
             "llm.input_messages.", "llm.output_messages.", "llm.tools.")  # fmt: skip


@dataclass(slots=True)
class Dialogue:
    input: list[dict[str, Any]] = field(default_factory=list)
    output: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)


def dialogue(attributes: dict[str, Any]) -> Dialogue | None:
    """The messages and tools of the indexed attributes; None where there are none."""
    found = Dialogue()
    trees: dict[str, Any] = {}
    for key, value in attributes.items():
        prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None)
        if prefix is None or not key[len(prefix) :].split(".", 1)[0].isdigit():
            continue
        if _plant(trees.setdefault(prefix, {}), key[len(prefix) :].split("."), value):
            found.used.add(key)
    if not trees:
        return None
    for prefix, tree in trees.items():
        items = [item for item in _listed(tree) if isinstance(item, dict)]
        if prefix in ("gen_ai.prompt.", "gen_ai.completion."):
            target = found.input if prefix == "gen_ai.prompt." else found.output
            # An answer without a role is the assistant's, a prompt without one the user's.
            role = "user" if prefix == "gen_ai.prompt." else "assistant"
            target.extend(_with_thoughts([{"role": role, **_loop_message(one)} for one in items]))
        elif prefix in ("llm.input_messages.", "llm.output_messages."):
            target = found.input if prefix == "llm.input_messages." else found.output
            role = "user" if prefix == "llm.input_messages." else "assistant"
            target.extend({"role": role, **_inference_message(item)} for item in items)
        else:
            found.tools.extend(_tool(item) for item in items)
    return found


def _plant(tree: dict[str, Any], path: list[str], value: Any) -> bool:
    """Puts `value` at `path`; False where something else stands in the way."""
    for step in path[:-1]:
        below = tree.setdefault(step, {})
        if not isinstance(below, dict):
            return False
        tree = below
    if path[-1] in tree:
        return False
    tree[path[-1]] = value
    return True


def _listed(tree: Any) -> list[Any]:
    """The children of a branch whose keys are indices, in order."""
    if not isinstance(tree, dict):
        return []
    indices = sorted((key for key in tree if key.isdigit()), key=int)
    return [tree[key] for key in indices]


def _decoded(value: Any) -> Any:
    """Content that is a list of parts comes as JSON text."""
    if isinstance(value, str) and value.startswith("[{") and '"type"' in value:
        parts = nested(value)
        if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
            return parts
    return value


def _loop_message(item: dict[str, Any]) -> dict[str, Any]:
    message = dict(item)
    if "content" in message:
        message["content"] = _decoded(message["content"])
    if "tool_calls" in message:
        message["tool_calls"] = [call for call in _listed(message["tool_calls"]) if call]
    return message


def _with_thoughts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thoughts that stand as a message of their own go into the answer that follows them."""
    found: list[dict[str, Any]] = []
    thoughts: list[dict[str, Any]] = []
    for message in [*messages, None]:
        if message and message["role"] == "thinking" and isinstance(message.get("content"), str):
            thoughts.append(message)
            continue
        if thoughts:
            ended = {key: one["finish_reason"] for one in thoughts for key in ("finish_reason",)
                     if one.get(key)}  # fmt: skip
            said = "\n".join(one["content"] for one in thoughts)
            found.append({**ended, **(message or {"role": "assistant"}), "reasoning": said})
        elif message:
            found.append(message)
        thoughts = []
    return found


def _inference_message(item: dict[str, Any]) -> dict[str, Any]:
    said = item.get("message")
    message = dict(said) if isinstance(said, dict) else {}
    if "tool_calls" in message:
        calls = [call.get("tool_call") for call in _listed(message["tool_calls"])]
        message["tool_calls"] = [call for call in calls if isinstance(call, dict)]
    if "function_call_name" in message:
        message["function_call"] = {
            "name": message.pop("function_call_name"),
            "arguments": message.pop("function_call_arguments_json", None),
        }
    contents = _listed(message.pop("contents", None))
    if contents:
        parts = [_inference_part(part) for part in contents if isinstance(part, dict)]
        called = {call.get("id") for call in message.get("tool_calls", ())}
        message["content"] = [part for part in parts if not _said_twice(part, called)]
    return message


def _inference_part(value: dict[str, Any]) -> dict[str, Any]:
    call = value.get("tool_call")
    if isinstance(call, dict):
        return {"type": "tool_call", **call}
    part = value.get("message_content")
    part = dict(part) if isinstance(part, dict) else {}
    image = part.pop("image", None)
    if isinstance(image, dict):
        inner = image.get("image")
        return {"type": "image_url", "image_url": inner if isinstance(inner, dict) else image}
    return part


def _said_twice(part: dict[str, Any], called: set[Any]) -> bool:
    """A call among the contents that also stands among the message's tool calls."""
    if part.get("type") not in ("tool_call", "tool_use"):
        return False
    return not part.keys() - {"type"} or part.get("id") in called


def _tool(item: dict[str, Any]) -> dict[str, Any]:
    schema = item.get("tool")
    if isinstance(schema, dict) and "json_schema" in schema:
        found = nested(schema["json_schema"])
        return found if isinstance(found, dict) else {"json_schema": found}
    return {**item, "parameters": nested(item.get("parameters"))}
