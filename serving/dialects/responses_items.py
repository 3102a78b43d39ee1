"""Items of OpenAI's Responses as messages of the chat form.

Calls that stand together are one answer of the model's, with the thoughts before them. An item that
is not known is refused; a part of one passes as it is.
"""

from collections.abc import Iterator
from typing import Any

from serving.dialects.parts import Fields, joined
from serving.refusal import invalid


def messages_of(items: list[Fields]) -> Iterator[Fields]:
    """Reasoning, text and calls that follow each other are one message of the assistant's."""
    said: Fields = {}
    for place, item in enumerate(items):
        part = _said(item, f"input[{place}]")
        if part is None:
            if said:
                yield said
            said = {}
            yield _heard(item, f"input[{place}]")
        elif "content" in part and ("content" in said or "tool_calls" in said):
            yield said
            said = part
        else:
            calls = [*said.get("tool_calls", ()), *part.get("tool_calls", ())]
            said = {"role": "assistant", "content": None, **said, **part}
            if calls:
                said["tool_calls"] = calls
    if said:
        yield said


def _said(item: Fields, where: str) -> Fields | None:
    """What an item adds to the assistant's message; None = it is another's."""
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") == "assistant":
        return {"role": "assistant", **_answered(item.get("content"), where)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "reasoning":
        lists = [item.get(key) for key in ("content", "summary")]
        parts = [part for one in lists if isinstance(one, list) for part in one]
        texts = [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
        return {"role": "assistant", "reasoning_content": "".join(texts)}
    return None


def _answered(content: Any, where: str) -> Fields:
    parts = _parts(content, where)
    refusals = [str(part["refusal"]) for part in parts if part.get("type") == "refusal"]
    texts = [part for part in parts if part.get("type") != "refusal"]
    return {
        "content": joined(texts) if texts else None,
        **({"refusal": "".join(refusals)} if refusals else {}),
    }


def _heard(item: Fields, where: str) -> Fields:
    kind = item.get("type", "message")
    if kind == "message":
        if not isinstance(item.get("role"), str):
            raise invalid(f"{where}.role must be a string", f"{where}.role")
        content = joined(_parts(item.get("content"), where))
        return {"role": item["role"], "content": content}
    if kind == "function_call_output":
        output = item.get("output")
        content = joined(_parts(output if output is not None else "", where))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    raise invalid(
        f"{where}: items of the type {kind!r} are not known here: send messages, function calls, "
        "their outputs and reasoning",
        f"{where}.type",
    )


def _parts(content: Any, where: str) -> list[Fields]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        text = f"{where}.content must be a string or an array of parts"
        raise invalid(text, f"{where}.content")
    return [_part(part) for part in content]


def _part(part: Fields) -> Fields:
    """One that we do not know passes as it is."""
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    if kind == "input_file":
        return {"type": "file", "file": {key: part[key] for key in part if key != "type"}}
    return part
