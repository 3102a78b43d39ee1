"""Says of a configuration that does not fit which key is wrong, and which was probably meant.

Enter: the pydantic model and its ValidationError. Leaves: one line each fault. Invariant: the
nearest known key is looked for where the wrong one stands, also inside nested models and unions.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from flywheel.errors import unfit


def explain(model: type[BaseModel], error: ValidationError) -> list[str]:
    return [_line(model, item) for item in error.errors()]


def nearest(wrong: str, known: Sequence[str]) -> str:
    """ "did you mean 'x'?", or what is known."""
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"


def _line(model: type[BaseModel], item: Any) -> str:
    where = _Place(model, item["loc"])
    key = ".".join(str(part) for part in where.path)
    if item["type"] == "extra_forbidden":
        return f"  {key}: unknown key; {nearest(str(item['loc'][-1]), where.known)}"
    if item["type"] == "union_tag_not_found":
        return f"  {key}: needs kind, one of {', '.join(where.tags)}"
    if item["type"] == "union_tag_invalid":
        tag = str(item["ctx"]["tag"])
        return f"  {key}.kind: unknown {tag!r}; {nearest(tag, where.tags)}"
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        known = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        return f"  {key}: unknown {item['input']!r}; {nearest(item['input'], known)}"
    return f"  {key}: {unfit(item)}"


class _Place:
    """Where a fault stands: its path as people wrote it (without a union's tag), the keys known at
    its parent, and the tags of the union that it is."""

    def __init__(self, model: type[BaseModel], loc: Sequence[int | str]) -> None:
        self.path: list[int | str] = []
        self.known: list[str] = []
        self.tags: list[str] = []
        at: list[Any] = [model]
        for part in loc:
            models = [one for one in at if isinstance(one, type) and issubclass(one, BaseModel)]
            tagged = [one for one in models if len(models) > 1 and part in _tags(one)]
            if tagged:
                at = tagged
                continue
            self.path.append(part)
            self.known = sorted({name for one in models for name in one.model_fields})
            fields = [one.model_fields[part] for one in models if part in one.model_fields]
            at = [leaf for one in fields for leaf in _leaves(one.annotation)]
        self.tags = sorted(tag for one in at for tag in _tags(one))


def _leaves(annotation: Any) -> Iterator[Any]:
    """The types in a union, in a tuple of many, under Annotated."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _leaves(inner[0])
    elif origin is Literal or not inner:
        yield annotation
    else:
        for one in inner:
            yield from _leaves(one)


def _tags(model: Any) -> tuple[str, ...]:
    kind = getattr(model, "model_fields", {}).get("kind")
    return get_args(kind.annotation) if kind and get_origin(kind.annotation) is Literal else ()
