"""TensorZero's inputs and outputs as messages: blocks of text, templates, calls, results, files.

Older rows write a text as `value`, newer ones as `text`; an object in its place is what a template
was filled with. Invariant: a block that is not known is kept whole.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Choice, File, Message, Part, Reasoning, Unknown

from .messages import name_of
from .parsed import Rest
from .parts import picture, read_parts, tool_call, tool_result


def read_conversation(value: Any, rest: Rest) -> tuple[Message, ...]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not an object", field="input")
    messages: list[Message] = []
    system = value.get("system")
    if system is not None:
        part = rest.text(system) if isinstance(system, str) else _template(system, rest)
        messages.append(Message(role="system", parts=(part,)))
    held = value.get("messages")
    if held is not None and not isinstance(held, list):
        raise BadRecord(f"is {name_of(held)}, not a list", field="input.messages")
    for at, one in enumerate(held or ()):
        messages += _turn(one, rest, f"input.messages[{at}]")
    rest.put_others(value, frozenset(("system", "messages")), "input")
    return tuple(messages)


def read_gave(value: Any, rest: Rest) -> tuple[Choice, ...]:
    """The answer: blocks of chat, or the raw text of a JSON function with what it parses to."""
    if value is None or value == "":
        return ()
    if isinstance(value, dict) and "raw" in value:
        raw = value["raw"]
        parts: list[Part] = [rest.text(raw)] if isinstance(raw, str) else []
        if value.get("parsed") is None and "parsed" in value:
            rest.put("output.parsed", False)  # the text does not keep to the function's schema
        rest.put_others(value, frozenset(("raw", "parsed")), "output")
    elif isinstance(value, list):
        parts = [part for one in value for part in _block(one, rest, "output")]
    else:
        parts = list(read_parts(value, rest, "output"))
    return (Choice(message=Message(role="assistant", parts=tuple(parts))),)


def _turn(value: Any, rest: Rest, path: str) -> list[Message]:
    if not isinstance(value, dict):
        raise BadRecord(f"is {name_of(value)}, not a message", field=path)
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise BadRecord(f"is {name_of(role)}, not a role", field=f"{path}.role")
    rest.put_others(value, frozenset(("role", "content")), path)
    content = value.get("content")
    messages: list[Message] = []
    said: list[Part] = []
    for one in content if isinstance(content, list) else [content]:
        parts = _block(one, rest, f"{path}.content")
        if isinstance(one, dict) and one.get("type") == "tool_result":
            if said:
                messages.append(Message(role=role, parts=tuple(said)))
            said = []
            messages.append(Message(role="tool", parts=tuple(parts)))
        else:
            said += parts
    if said or not messages:
        messages.append(Message(role=role, parts=tuple(said)))
    return messages


def _block(value: Any, rest: Rest, path: str) -> list[Part]:
    if not isinstance(value, dict):
        return read_parts(value, rest, path)
    kind = value.get("type")
    if kind in ("text", "raw_text"):
        text = value.get("text", value.get("value", value.get("arguments")))
        return [rest.text(text) if isinstance(text, str) else _template(value, rest)]
    if kind == "template":
        return [_template(value, rest)]
    if kind == "tool_call":
        asked = value.get("raw_arguments")
        asked = value.get("arguments") if asked is None else asked
        name = value.get("name") or value.get("raw_name")
        return tool_call(name, asked, value.get("id"), rest)
    if kind == "tool_result":
        return tool_result(value.get("result"), value.get("id"), value.get("name"), rest, path)
    if kind in ("image", "file") and isinstance(value.get(kind), dict):
        return [_file(str(kind), value, rest, path)]
    if kind == "thought":
        text = value.get("text")
        sealed = value.get("signature")
        sealed = sealed if isinstance(sealed, str) else None
        return [Reasoning(text=text if isinstance(text, str) else "", signature=sealed)]
    if kind == "unknown":
        return [Unknown(kind="unknown", raw=rest.bounded(value))]
    return read_parts(value, rest, path)


def _file(kind: str, value: dict[str, Any], rest: Rest, path: str) -> Part:
    inner = value[kind]
    url, mime = inner.get("url"), inner.get("mime_type")
    mime = mime if isinstance(mime, str) else None
    rest.put(f"{path}.storage_path", value.get("storage_path"))
    if kind == "image" or (mime or "").startswith("image/"):
        return picture(url, rest, mime) if url is not None else picture("", rest, mime)
    name = inner.get("filename")
    return File(
        url=url if isinstance(url, str) else None,
        name=name if isinstance(name, str) else None,
        media_type=mime,
    )


def _template(value: Any, rest: Rest) -> Part:
    return Unknown(kind="template", raw=rest.bounded(value))
