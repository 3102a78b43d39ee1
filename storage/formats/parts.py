"""Content parts of every dialect (OpenAI, GenAI, Anthropic, Google) as `flywheel.records` parts.

What enters is one element of a content list; what leaves are record parts. Bytes inside (base64)
go to the raw store. Invariant: a part that is not understood is kept as `Unknown`, never dropped.
"""

import binascii
from collections.abc import Callable
from typing import Any

import msgspec

from flywheel.records import (
    File,
    Image,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)  # fmt: skip

from .nested import nested
from .parsed import Rest

Parts = list[Part]


def read_parts(content: object, rest: Rest, path: str) -> Parts:
    """The parts of a message's content: null, text, one part or a list of them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [rest.text(content)]
    if isinstance(content, dict):
        return _part(content, rest, path)
    if not isinstance(content, list):
        return [Unknown(kind=type(content).__name__, raw=rest.bounded(content))]
    parts: Parts = []
    for at, item in enumerate(content):
        if isinstance(item, str):
            parts.append(rest.text(item))
        elif isinstance(item, dict):
            parts.extend(_part(item, rest, f"{path}[{at}]"))
        elif item is not None:
            parts.append(Unknown(kind=type(item).__name__, raw=rest.bounded(item)))
    return parts


def arguments_text(value: object) -> str:
    """A call's arguments as JSON text; text is kept as the model wrote it."""
    if isinstance(value, str):
        return value
    return "{}" if value is None else msgspec.json.encode(value).decode()


def tool_call(name: object, arguments: object, id: object, rest: Rest) -> Parts:
    text, cut = rest.cut(arguments_text(arguments))
    call = ToolCall(name=_text(name) or "", arguments=text, id=_text(id) or None)
    return [call, cut] if cut else [call]


def tool_result(
    content: object, id: object, name: object, rest: Rest, path: str, error: object = None
) -> Parts:
    """A result's text; what else it holds (images) follows as parts of its own."""
    if isinstance(content, str):
        text, others = content, list[Part]()
    elif isinstance(content, list):
        inner = read_parts(content, rest, path)
        text = "".join(part.text for part in inner if isinstance(part, Text))
        others = [part for part in inner if not isinstance(part, Text)]
    else:
        text, others = ("" if content is None else arguments_text(content)), []
    text, cut = rest.cut(text)
    result = ToolResult(
        content=text,
        id=_text(id) or None,
        name=_text(name) or None,
        is_error=error if isinstance(error, bool) else None,
    )
    return [result, cut, *others] if cut else [result, *others]


def picture(url: object, rest: Rest, media_type: object = None) -> Part:
    """An image by its address; the bytes of a data: address go to the raw store."""
    if not isinstance(url, str):
        return Unknown(kind="image", raw=rest.bounded(url))
    data, kind = _data_url(url)
    if data is not None:
        return Image(digest=rest.keep(data), media_type=kind or _text(media_type))
    short, cut = rest.cut(url)
    return cut or Image(url=short, media_type=_text(media_type))


def attachment(data: object, name: object, media_type: object, rest: Rest) -> Part:
    """A file given as base64, plain or as a data: address."""
    if not isinstance(data, str):
        return File(name=_text(name), media_type=_text(media_type))
    found, kind = _data_url(data)
    if found is None:
        found = _base64(data)
    if found is None:
        short, cut = rest.cut(data)
        return cut or File(name=_text(name), url=short, media_type=_text(media_type))
    return File(name=_text(name), digest=rest.keep(found), media_type=kind or _text(media_type))


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return str(value)


def _base64(text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=False) or None
    except (binascii.Error, ValueError):
        return None


def _data_url(url: str) -> tuple[bytes | None, str | None]:
    if not url.startswith("data:"):
        return None, None
    head, comma, body = url[5:].partition(",")
    if not comma or not head.endswith(";base64"):
        return None, None
    return _base64(body), head.partition(";")[0] or None


# --- one kind of part each: (value, rest, path) -> parts, with the keys that it reads ------------

_Reader = Callable[[dict[str, Any], Rest, str], Parts]


def _first(value: dict[str, Any], *keys: str) -> Any:
    return next((value[key] for key in keys if value.get(key) is not None), None)


def _plain(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    text = _first(value, "text", "content", "value")
    return (
        [rest.text(text)]
        if isinstance(text, str)
        else [Unknown(kind="text", raw=rest.bounded(value))]
    )


def _reasoning(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    """Thoughts, or their summary; what only the provider can read stands as the signature."""
    words = ("text", "content", "thinking", "value", "summary")
    text = next((value[key] for key in words if value.get(key)), "")
    if isinstance(text, list):
        text = "\n".join(str(item.get("text", "")) for item in text if isinstance(item, dict))
    if not isinstance(text, str):
        return [Unknown(kind="reasoning", raw=rest.bounded(value))]
    text, cut = rest.cut(text)
    sealed = _first(value, "signature", "encrypted_content", "data")
    return [cut or Reasoning(text=text, signature=_text(sealed) or None)]


def _refusal(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    return [Refusal(text=str(_first(value, "refusal", "content", "text") or ""))]


def _call(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    inner = value.get("function")
    if inner is None and isinstance(value.get("value"), str):  # the call as JSON text
        inner = nested(value["value"])
        if not isinstance(inner, dict):
            return [Unknown(kind="tool_call", raw=rest.bounded(value))]
    source = inner if isinstance(inner, dict) else value
    arguments = _first(source, "arguments", "input", "args")
    return tool_call(_first(source, "name", "toolName"), arguments,
                     _first(value, "call_id", "id", "toolCallId"), rest)  # fmt: skip


def _result(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    content = _first(value, "response", "result", "content", "output")
    ids = _first(value, "tool_use_id", "call_id", "toolCallId", "id")
    name = _first(value, "name", "toolName")
    return tool_result(content, ids, name, rest, path, value.get("is_error"))


def _image(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    inner = _first(value, "image_url", "source", "image", "url", "value")
    if isinstance(inner, dict):
        for key in inner.keys() - {"url", "data", "media_type", "type"}:
            rest.put(f"{path}.image.{key}", inner[key])
        if isinstance(inner.get("data"), str):
            kind = _text(inner.get("media_type")) or "application/octet-stream"
            return [picture(f"data:{kind};base64,{inner['data']}", rest)]
        inner = _first(inner, "url", "file_id")
    return [picture(_first({"": inner, **value}, "", "file_id"), rest, value.get("media_type"))]


def _uri(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    if value.get("modality") == "image":
        return [picture(value.get("uri"), rest, value.get("mime_type"))]
    return [File(url=_text(value.get("uri")), media_type=_text(value.get("mime_type")))]


def _blob(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    content, kind = value.get("content"), _text(value.get("mime_type"))
    if value.get("modality") == "image":
        return [picture(f"data:{kind or ''};base64,{content}", rest)]
    return [attachment(content, None, kind, rest)]


def _file(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    inner = _first(value, "file", "source")
    source = inner if isinstance(inner, dict) else value
    if isinstance(source.get("content"), str | list):  # a document of parts
        return read_parts(source["content"], rest, f"{path}.content")
    data = _first(source, "file_data", "data")
    name = _first(source, "filename", "file_id", "name") or value.get("title")
    address = _first(source, "file_url", "url")
    kind = _text(source.get("media_type"))
    if data is None and address is not None:
        return [File(name=_text(name), url=_text(address))]
    if source.get("type") == "text" and isinstance(data, str):
        digest = rest.keep(data.encode("utf-8", "replace"))
        return [File(name=_text(name), digest=digest, media_type=kind or "text/plain")]
    return [attachment(data, name, kind, rest)]


def _audio(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    inner = value.get("input_audio")
    inner = inner if isinstance(inner, dict) else value
    return [attachment(inner.get("data"), None, f"audio/{inner.get('format') or '*'}", rest)]


def _video(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    inner = value.get("video_url")
    return [File(url=_text(inner.get("url") if isinstance(inner, dict) else inner))]


_TEXT = frozenset(("type", "text", "content", "value"))
_CALL = frozenset(("type", "name", "id", "call_id", "toolCallId", "toolName", "arguments", "input",
                   "args", "function", "value"))  # fmt: skip
_RESULT = frozenset(("type", "response", "result", "content", "output", "tool_use_id", "call_id",
                     "toolCallId", "id", "name", "toolName", "is_error"))  # fmt: skip
_THOUGHT = frozenset(("type", "text", "content", "thinking", "value", "summary", "signature",
                      "encrypted_content", "data"))  # fmt: skip
_IMAGE = frozenset(("type", "image_url", "source", "image", "url", "value", "media_type",
                    "file_id"))  # fmt: skip
_FILE = frozenset(("type", "file", "source", "file_data", "filename", "file_id", "file_url",
                   "title"))  # fmt: skip
_READERS: dict[str, tuple[_Reader, frozenset[str]]] = {
    "text": (_plain, _TEXT),
    "input_text": (_plain, _TEXT),
    "output_text": (_plain, _TEXT),
    "reasoning": (_reasoning, _THOUGHT),
    "thinking": (_reasoning, _THOUGHT),
    "redacted_thinking": (_reasoning, _THOUGHT),
    "refusal": (_refusal, frozenset(("type", "refusal", "content", "text"))),
    "tool_call": (_call, _CALL),
    "tool-call": (_call, _CALL),
    "tool_use": (_call, _CALL),
    "function_call": (_call, _CALL),
    "function": (_call, _CALL),
    "tool_call_response": (_result, _RESULT),
    "tool-result": (_result, _RESULT),
    "tool_result": (_result, _RESULT),
    "function_call_output": (_result, _RESULT),
    "image_url": (_image, _IMAGE),
    "input_image": (_image, _IMAGE),
    "image": (_image, _IMAGE),
    "uri": (_uri, frozenset(("type", "uri", "modality", "mime_type"))),
    "blob": (_blob, frozenset(("type", "content", "modality", "mime_type"))),
    "file": (_file, _FILE),
    "input_file": (_file, _FILE),
    "document": (_file, _FILE),
    "input_audio": (_audio, frozenset(("type", "input_audio", "data", "format"))),
    "video_url": (_video, frozenset(("type", "video_url"))),
}


def _part(value: dict[str, Any], rest: Rest, path: str) -> Parts:
    kind = value.get("type")
    found = _READERS.get(kind) if isinstance(kind, str) else None
    if found is None:
        return _untyped(value, rest)
    reader, known = found
    rest.put_others(value, known, path)
    return reader(value, rest, path)


def _untyped(value: dict[str, Any], rest: Rest) -> Parts:
    """Google's parts name their kind by their only key."""
    if isinstance(value.get("text"), str) and len(value) == 1:
        return [rest.text(value["text"])]
    call = _first(value, "function_call", "functionCall")
    if isinstance(call, dict):
        return tool_call(call.get("name"), call.get("args"), call.get("id"), rest)
    answer = _first(value, "function_response", "functionResponse")
    if isinstance(answer, dict):
        return tool_result(answer.get("response"), answer.get("id"), answer.get("name"), rest, "")
    inline = _first(value, "inline_data", "inlineData")
    if isinstance(inline, dict):
        mime = _text(_first(inline, "mime_type", "mimeType")) or ""
        if mime.startswith("image/"):
            return [picture(f"data:{mime};base64,{inline.get('data')}", rest)]
        return [attachment(inline.get("data"), None, mime, rest)]
    kind = value.get("type")
    return [Unknown(kind=kind if isinstance(kind, str) else "part", raw=rest.bounded(value))]
