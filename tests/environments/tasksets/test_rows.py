"""Plain rows out of every container; what is wrong with a row is told with its place."""

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environments.define import Environment
from environments.tasksets import json_rows, settle
from environments.tasksets.contract import Read
from flywheel.errors import ProjectError
from flywheel.records import Problem

ROWS = [
    {"question": f"How many legs have {k} spiders?", "answer": str(8 * k), "slice": "legs"}
    for k in range(1, 21)
]


class Legs(Environment):
    def slice(self, problem: Problem) -> str:
        return "by hook"


def read(path: Path, **tasks: Any) -> Read:
    return Legs({"tasks": {"path": str(path), "near_duplicate": None, **tasks}}).problems()


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return path


def told(found: Read, path: Path) -> list[str]:
    return [str(one).removeprefix(f"{path}:") for one in found.rejects]


def written(folder: Path) -> list[Path]:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, folder / "rows.parquet")
    for name, opened in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with opened(str(folder / f"{name}.arrow"), table.schema) as sink:
            sink.write_table(table)
    text = "".join(f'"{r["question"]}",{r["answer"]},legs\n' for r in ROWS)
    (folder / "rows.csv").write_text("question,answer,slice\n" + text)
    (folder / "rows.tsv").write_text(
        "question\tanswer\tslice\n"
        + "".join(f"{r['question']}\t{r['answer']}\tlegs\n" for r in ROWS)
    )
    (folder / "rows.json").write_text(json.dumps(ROWS))
    lines(folder / "rows.jsonl", ROWS)
    lines(folder / "lines.json", ROWS)
    return sorted(folder.iterdir())


def test_every_container_gives_the_same_problems_on_the_same_sides(tmp_path: Path) -> None:
    first, *others = [list(read(path).problems) for path in written(tmp_path)]
    assert [p.answer for p in first] == [row["answer"] for row in ROWS]
    assert {p.split for p in first} == {"train", "heldout"} and {p.slice for p in first} == {"legs"}
    assert len(others) == 7 and all(other == first for other in others)


def test_what_datasets_saved_to_disk_is_read_by_its_own_order_and_splits(tmp_path: Path) -> None:
    for split, rows in (("train", ROWS[:15]), ("test", ROWS[15:])):
        (tmp_path / split).mkdir()
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(str(tmp_path / split / "data-0.arrow"), table.schema) as sink:
            sink.write_table(table)
        state = {"_data_files": [{"filename": "data-0.arrow"}], "_indices_data_files": None}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = list(read(tmp_path).problems)
    assert [p.split for p in found] == ["train"] * 15 + ["heldout"] * 5
    (tmp_path / "test" / "data-0.arrow").unlink()
    with pytest.raises(ProjectError, match=r"data-0.arrow is missing"):
        read(tmp_path)


def test_a_bad_row_is_told_with_file_line_and_field_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", [
        *ROWS[:2], "{no json", '["a list"]', {"answer": 1}, {"question": 7}, {"question": " "},
        {"messages": [{"role": "boss", "content": "x"}]}, {"question": "a", "split": "later"},
        {"question": "b", "tools": [{"parameters": {}}]}, "", {"prompt": "last", "answer": None},
    ])  # fmt: skip
    found = read(path)
    assert [p.answer for p in found.problems] == ["8", "16", None]
    assert list(found.problems)[-1].attributes == {"truth": "the set states no answer"}
    assert found.left_out == {"not readable": 8}
    for told_, begins in zip(told(found, path), (
        "3: is no JSON", "4: is list, not an object", "5: prompt: is missing; the row has answer",
        "6: question: is int: give a text or a list", "7: question: is empty",
        "8: messages[0].role: is 'boss': one of system", "9: split: is 'later': name it one of",
        "10: tools[0]: has no name",
    ), strict=True):  # fmt: skip
        assert told_.startswith(begins)


def test_a_csv_row_of_other_width_is_a_reject_and_json_cells_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('messages,answer\n"[{""role"": ""user"", ""content"": ""hi""}]",1\nx,y,z\n,\n')
    found = read(path)
    (one,) = found.problems
    assert one.messages[0].text == "hi" and one.answer == "1"
    assert [text.split(":")[0] for text in told(found, path)] == ["3", "4"]


def test_fields_go_by_the_names_that_options_give(tmp_path: Path) -> None:
    row = {"q": "Two?", "gold": 2, "who": "u1", "topic": "sums", "source": "book", "n": 7}
    path = lines(tmp_path / "r.jsonl", [row, {"q": "Three?"}])
    options = {"prompt": "q", "answer": "gold", "user": "who", "slice": "topic", "id": "n"}
    found = read(path, options={**options, "system": "Count."})
    (one,) = found.problems
    assert [m.role for m in one.messages] == ["system", "user"] and one.text == "Two?"
    assert (one.answer, one.user, one.slice) == (2, "u1", "sums")
    assert one.attributes == {"id": 7, "row": {"source": "book"}}
    assert told(found, path) == ["2: gold: is missing, and options.answer names it"]
    with pytest.raises(ProjectError, match="anwser: unknown; did you mean 'answer'"):
        read(path, options={"anwser": "gold"})


def test_messages_tools_and_their_results_become_records(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = {
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
            ]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }  # fmt: skip
    (one,) = read(lines(tmp_path / "r.jsonl", [row])).problems
    assert [type(p).__name__ for m in one.messages for p in m.parts] == [
        "Text", "Image", "ToolCall", "ToolResult",
    ]  # fmt: skip
    assert one.tools[0]["function"]["parameters"] == {"type": "object"} and one.slice == "by hook"


def test_a_split_that_the_set_states_is_kept_unless_it_is_for_evaluation_only(
    tmp_path: Path,
) -> None:
    lines(tmp_path / "d" / "train.jsonl", ROWS[:9])
    lines(tmp_path / "d" / "test-00000-of-00001.jsonl", ROWS[9:12])
    lines(
        tmp_path / "d" / "more.jsonl",
        [{**ROWS[12], "split": "dev"}, {**ROWS[13], "split": "train"}],
    )

    def sides(**tasks: Any) -> Counter[str]:
        return Counter(p.split for p in read(tmp_path / "d", **tasks).problems)

    assert sides() == {"train": 10, "heldout": 4}
    assert sides(heldout_share=1) == {"heldout": 14}
    assert sides(heldout_slices=["legs"], options={"own_split": False}) == {"heldout": 14}
    by_hash = sides(options={"own_split": False})
    assert by_hash.total() == 14 and by_hash != sides()


def test_what_is_held_out_never_gives_way_and_order_decides_nothing(tmp_path: Path) -> None:
    long = "Please sum up all of the apples which the farmers brought in on Monday and"
    rows: list[Any] = [
        {"question": f"{long} Tuesday", "answer": 1, "split": "train"},
        {"question": f"{long} Wednesday", "answer": 2, "split": "test"},
        {"question": "Same on both sides", "answer": 3, "split": "train"},
        {"question": "Same on both sides", "answer": 3, "split": "test"},
        {"question": "Of the held-out user", "answer": 4, "split": "train", "user": "u"},
        {"question": "Another word of theirs", "answer": 5, "split": "test", "user": "u"},
        {"question": "Torn", "answer": 6, "split": "train"},
        {"question": "Torn", "answer": 7, "split": "train"},
    ]
    found = read(lines(tmp_path / "a.jsonl", rows), near_duplicate=0.7)
    back = read(lines(tmp_path / "b.jsonl", rows[::-1]), near_duplicate=0.7)
    assert {p.id for p in found.problems} == {p.id for p in back.problems}
    assert {(p.text, p.answer, p.split) for p in found.problems} == {
        (f"{long} Wednesday", 2, "heldout"), ("Same on both sides", 3, "heldout"),
        ("Another word of theirs", 5, "heldout"), ("Torn", None, "train"),
    }  # fmt: skip
    assert found.left_out == back.left_out == {
        "the same problem again": 1, "the same prompt with another answer": 1,
        "nearly a held-out problem": 1, "of a held-out user or conversation": 1,
    }  # fmt: skip


def test_values_are_what_records_can_keep(tmp_path: Path) -> None:
    path = lines(tmp_path / "r.jsonl", [{"question": "a", "answer": 10**30}, ROWS[0]])
    found = read(path)
    assert told(found, path)[0].startswith("1: holds what cannot be stored")
    assert [one.answer for one in found.problems] == ["8"]
    rows = [{"question": "when", "answer": datetime(2026, 11, 3), "n": Decimal("1.5"), "raw": b"x"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    (one,) = read(tmp_path / "t.parquet").problems
    assert one.answer == "2026-11-03T00:00:00" and one.attributes["row"] == {
        "n": "1.5",
        "raw": "eA==",
    }


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "MAX_LINE", 200)
    monkeypatch.setattr(settle, "MAX_REJECTS", 3)
    path = lines(tmp_path / "r.jsonl", [{"question": "x" * 300}, *ROWS[:3], *["no"] * 9])
    found = read(path, limit=2)
    assert [p.answer for p in found.problems] == ["8", "16"]
    assert "is longer than 200 bytes" in str(found.rejects[0])
    found = read(path)
    assert len(found.rejects) == 3 and found.left_out["not readable"] == 10


def test_what_is_no_set_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no")
    lines(tmp_path / "rows.jsonl", ROWS)
    for path, tasks, expected in (
        ("gone.jsonl", {}, "no task set at .*gone.jsonl"),
        ("empty", {}, "holds no rows"),
        ("notes.txt", {}, "is no task set that is known"),
        ("rows.jsonl", {"kind": "jsonlines"}, "did you mean 'jsonl'"),
    ):
        with pytest.raises(ProjectError, match=expected):
            read(tmp_path / path, **tasks)
    torn = read(tmp_path / "torn.parquet", kind="parquet")
    assert "is no whole Parquet file" in str(torn.rejects[0]) and not list(torn.problems)
    assert len(list(read(tmp_path / "rows.jsonl", kind="jsonl").problems)) == 20
    with pytest.raises(ProjectError, match="needs a path"):
        Legs({"tasks": {}}).problems()
