"""BFCL: a question, the functions on offer, and the calls that are right.

The answer is a list of {"name", "arguments": {argument: [allowed values]}}, in the order of the
benchmark; "" among the allowed means that the argument may be left out; [] = no call is right. Its
files are lines named `.json`, with the truth under `possible_answer/` beside them. Names with dots,
which no OpenAI-compatible server takes, are written with underscores; Python's types become JSON
schema's.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments.tasksets.contract import Drawn, Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import messages_of
from environments.tasksets.rows import Row, files, rows, storable
from flywheel.errors import BadRecord
from flywheel.records import say

TRUTHS = "possible_answer"
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array"}
_JSON_TYPES = ("object", "number", "array", "string", "integer", "boolean", "null")
_NUMBER = re.compile(r"_\d[\d-]*$")


class Categories(Options):
    categories: tuple[str, ...] = ()
    """Such as simple_python, parallel, irrelevance; () = all that are there."""


def read(source: Source) -> Drawn:
    for file in files(source.path):
        if TRUTHS in file.parts[:-1]:
            continue
        truths = _truths(file.parent / TRUTHS / file.name)
        for row in rows(file):
            if isinstance(row, BadRecord):
                yield row
                continue
            try:
                yield from map(storable, _fit(row, source, truths))
            except BadRecord as bad:
                yield BadRecord(bad.reason, path=str(row.path), line=row.line, field=bad.field)


def _fit(row: Row, source: Source, truths: Mapping[str, Any]) -> Iterator[Given]:
    id = require(row.value, "id", str, "such as parallel_12")
    category = _NUMBER.sub("", id)
    if source.options.categories and category not in source.options.categories:
        return
    turns = require(row.value, "question", list, "a list of turns, each a list of messages")
    if len(turns) != 1:
        raise BadRecord(
            f"has {len(turns)} turns: categories of one turn are read", field="question"
        )
    messages = messages_of(turns[0], "question[0]")
    if source.options.system:
        messages = (say("system", source.options.system), *messages)
    offered = require(row.value, "function", list, "a list of functions")
    truth = row.value.get("ground_truth", truths.get(id))
    if truth is None and "irrelevance" in category:
        truth = []
    answer = None if truth is None else calls_of(truth, "ground_truth")
    yield Given(
        problem(
            source,
            messages,
            answer,
            why_none=f"no ground truth of {id} beside {row.path.name}",
            tools=tuple(_tool(one, f"function[{at}]") for at, one in enumerate(offered)),
            slice=category,
            attributes={"id": id, "category": category},
        ),
        row.side,
    )


def calls_of(truth: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(truth, list):
        raise BadRecord(
            f"is {type(truth).__name__}: a list of {{function: arguments}}", field=field
        )
    calls = []
    for at, one in enumerate(truth):
        fits = isinstance(one, dict) and len(one) == 1
        name, arguments = next(iter(one.items())) if fits else ("", None)
        if not isinstance(arguments, dict) or not all(
            isinstance(allowed, list) for allowed in arguments.values()
        ):
            reason = "is not {function: {argument: [allowed values]}}"
            raise BadRecord(reason, field=f"{field}[{at}]")
        calls.append({"name": plain_name(name), "arguments": arguments})
    return calls


def plain_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _tool(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise BadRecord("has no name: give {name, description, parameters}", field=field)
    parameters = value.get("parameters")
    if not isinstance(parameters, dict):
        raise BadRecord("is no schema of arguments", field=f"{field}.parameters")
    function = {
        "name": plain_name(value["name"]),
        "description": str(value.get("description", "")),
        "parameters": _schema(parameters),
    }
    return {"type": "function", "function": function}


def _schema(value: Any, depth: int = 0) -> Any:
    """Python's names of types as JSON schema's, all the way down; `any` says nothing."""
    if depth > 32 or not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for key, inner in value.items():
        if key == "type" and isinstance(inner, str):
            kind = _TYPES.get(inner.lower(), inner.lower())
            made |= {"type": kind} if kind in _JSON_TYPES else {}
        elif key == "properties" and isinstance(inner, dict):
            made[key] = {name: _schema(one, depth + 1) for name, one in inner.items()}
        elif key not in ("optional", "default"):
            made[key] = _schema(inner, depth + 1)
    return made


def _truths(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = (row.value for row in rows(path, ".json") if isinstance(row, Row))
    return {str(one.get("id")): one.get("ground_truth") for one in found}


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and row.keys() >= {"id", "question", "function"}


READER = Reader(Categories, recognises, read)
