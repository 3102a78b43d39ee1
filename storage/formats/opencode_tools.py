"""Tools of opencode, whose parameters are Zod's own description of a schema, as JSON schemas.

What enters is a tool's name and definition; what leaves is an OpenAI tool schema. A kind that is
not known stays without a type, so that any value fits it.
"""

from typing import Any

from .nested import fields_of

_PLAIN = {"string": "string", "number": "number", "boolean": "boolean", "int": "integer",
          "null": "null"}  # fmt: skip
_WRAPPED = ("optional", "default", "nullable", "readonly", "prefault", "catch", "pipe")
_DEEPEST = 24


def tool_of(name: str, made: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if isinstance(made.get("description"), str):
        function["description"] = made["description"]
    given = fields_of(made.get("parameters"))
    if given:
        function["parameters"] = _schema(given, 0) if "def" in given else given
    return {"type": "function", "function": function}


def _schema(value: object, depth: int) -> dict[str, Any]:
    zod = fields_of(value)
    inner = fields_of(zod.get("def"))
    kind = str(inner.get("type") or zod.get("type"))
    if depth > _DEEPEST:
        return {}
    if kind in _WRAPPED:
        made = _schema(inner.get("innerType") or inner.get("in"), depth + 1)
    elif kind == "object":
        shape = fields_of(inner.get("shape"))
        made = {
            "type": "object",
            "properties": {key: _schema(one, depth + 1) for key, one in shape.items()},
            "required": [key for key, one in shape.items() if not _optional(one)],
        }
    elif kind == "array":
        made = {"type": "array", "items": _schema(inner.get("element"), depth + 1)}
    elif kind == "enum":
        made = {"type": "string", "enum": list(fields_of(inner.get("entries")).values())}
    elif kind == "union" and isinstance(inner.get("options"), list):
        made = {"anyOf": [_schema(one, depth + 1) for one in inner["options"]]}
    else:
        made = {"type": _PLAIN[kind]} if kind in _PLAIN else {}
    if isinstance(zod.get("description"), str):
        made["description"] = zod["description"]
    return made


def _optional(value: object) -> bool:
    return fields_of(fields_of(value).get("def")).get("type") in ("optional", "default")
