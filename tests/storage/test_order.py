"""The same rows of other systems in any order, in any files, repeated and exported again under new
ids, by clocks that differ: the store is the same, and its sums are those of a single delivery."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from flywheel.home import Home
from storage.database import reading
from storage.importer import import_path

_BUT = {
    "traces": "since, raws, raw, digest", "spans": "since", "feedback": "since, body",
    "cards": "since, first_since", "threads": "since",
}  # fmt: skip
"""Tables that are compared, without when their rows came and which file's bytes they point to."""
_HOUR = 3_600 * 10**9


def otlp(trace: int, id: int, parent: int | None, start: int, **said: Any) -> dict[str, Any]:
    """An export request of one span."""
    attributes = {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 2,
        "gen_ai.input.messages": json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": f"q{min(trace, 2)}"}]}]),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "a"}],
              "finish_reason": "stop"}]),
    } if said.pop("call", False) else {}  # fmt: skip
    span = {
        "traceId": f"{trace:032x}", "spanId": f"{id:016x}", "name": said.pop("name", "step"),
        "startTimeUnixNano": start, "endTimeUnixNano": start + 10, "attributes": attributes, **said,
    }  # fmt: skip
    if parent is not None:
        span["parentSpanId"] = f"{parent:016x}"
    resource = {"attributes": {"service.name": "shop"}}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


def chat(id: str, at: int, *texts: str) -> dict[str, Any]:
    """A logged request; `texts`: by turns, the answer last."""
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    choice = {"index": 0, "message": said[-1], "finish_reason": "stop"}
    return {
        "request": {"model": "m", "messages": said[:-1]},
        "response": {"id": id, "object": "chat.completion", "created": at, "choices": [choice],
                     "usage": {"prompt_tokens": 5, "completion_tokens": 1}},
    }  # fmt: skip


START = 1_790_000_000 * 10**9
POST = {"id": "run-1", "trace_id": "run-1", "run_type": "llm", "name": "chat",
        "start_time": "2026-09-01T00:00:00", "dotted_order": "20260901T000000000000Zrun-1",
        "inputs": {"messages": [{"role": "user", "content": "hey"}], "model": "m"}}  # fmt: skip
PATCH = {"id": "run-1", "trace_id": "run-1", "end_time": "2026-09-01T00:00:02",
         "outputs": chat("r9", 9, "hey", "ho")["response"]}  # fmt: skip
ROWS: list[dict[str, Any]] = [
    otlp(1, 1, None, START, name="agent"),
    otlp(1, 2, 1, START - _HOUR, name="chat", call=True),  # its clock is an hour behind
    otlp(1, 3, 2, START + 5, name="tool"),
    otlp(1, 3, 2, START + 5, name="tool, told otherwise"),
    otlp(1, 4, 99, START + 9, name="its parent never comes"),
    otlp(1, 12, 1, START - _HOUR, name="chat", call=True),  # exported again under a new id
    otlp(2, 1, None, START, call=True),
    otlp(3, 7, None, START, call=True, name="step"),  # the same words at the same moment
    {"post": [POST], "patch": []},
    {"post": [], "patch": [PATCH]},
    chat("c1", 1_790_000_010, "hi", "hello"),
    chat("c2", 1_790_000_020, "hi", "hello", "more", "and more"),
    chat("c3", 1_790_000_030, "hi", "hello", "other", "another"),
    {**chat("c4", 1_790_000_040, "hi", "hello", "more", "and more", "?", "!"),
     "feedback": [{"name": "liked", "value": True}]},
]  # fmt: skip


def state(home: Home) -> dict[str, list[Any]]:
    found = {}
    with reading(home) as database:
        assert database is not None
        for table, but in _BUT.items():
            where = 'WHERE "until" IS NULL' if table == "threads" else ""
            rows = database.execute(f"SELECT * EXCLUDE ({but}) FROM {table} {where} ORDER BY ALL")
            names = [one[0] for one in rows.description]
            found[table] = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    return found


def imported(home: Home, files: list[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    for number, rows in enumerate(files):
        path = home.root.parent / f"{home.root.name}-{number}.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        import_path(home, path, project="p")
    return state(home)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return imported(Home(tmp_path_factory.mktemp("once") / "home"), [ROWS])


def test_a_single_delivery_counts_everything_once(once: dict[str, list[Any]]):
    assert len(once["threads"]) == 4 and len(once["feedback"]) == 1
    assert len(once["traces"]) == 3 + 1 + 4
    # Of OTLP's four calls one is a copy in its trace, one stands in a trace that is a copy.
    tokens = [one["input_tokens"] for one in once["cards"] if one["stands_for"] == one["trace_id"]]
    assert sorted(tokens) == [5, 5, 5, 5, 5, 7, 7]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_order_any_files_and_repetitions_give_the_same_store(
    once: dict[str, list[Any]], tmp_path: Path, seed: int
):
    chance = random.Random(seed)
    rows = ROWS + chance.choices(ROWS, k=4)
    chance.shuffle(rows)
    cuts = sorted(chance.sample(range(1, len(rows)), 3))
    files = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    found = imported(Home(tmp_path / "home"), files)
    for table, expected in once.items():
        assert found[table] == expected, table
