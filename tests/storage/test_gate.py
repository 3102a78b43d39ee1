import os
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from flywheel.data_section import DataGateSection
from flywheel.records import Message, Tokens, ToolCall, say
from flywheel.rows import TrainingRow
from storage.gate import data_gate
from storage.gates.earlier import FILE, Earlier
from storage.gates.expected import Wanted
from storage.gates.report import GateReport
from storage.narrow import narrow
from tests.storage.rows_for_curation import a_row

pytestmark = pytest.mark.slow  # importing Great Expectations takes seconds


def gate(folder: Path, *changes: dict[str, Any], min_rows: int = 8) -> GateReport:
    """The gate's word on ten rows, the first of them changed."""
    rows = [a_row(k, **change) for k, change in enumerate([*changes, *[{}] * (10 - len(changes))])]
    return data_gate(narrow(rows), folder, Wanted(min_rows, 64))


def looked(folder: Path, rows: list[TrainingRow], wanted: Wanted, *before: TrainingRow) -> Any:
    """What each gate says: None, or its failures."""
    earlier = Earlier("d" * 32, narrow(before)) if before else None
    found = data_gate(narrow(rows), folder, wanted, earlier)
    return found, {one.gate: None if one.skipped else one.failures for one in found.gates}


def tokens(size: int = 2, **changed: Any) -> Tokens:
    fields: dict[str, Any] = {"prompt_ids": (1,), "completion_ids": (2,) * size}
    return Tokens(**(fields | changed))


def test_good_rows_pass_and_leave_a_report(tmp_path: Path) -> None:
    result = gate(tmp_path)
    assert result.passed and result.failures == ()
    assert result.report == tmp_path / "gate.html"
    assert [one.passed for one in result.gates] == [True, True, True, None, None]
    page = result.report.read_text()
    assert "passed" in page and "10 rows, 15 expectations, 0 not met" in page


HINT = "more conversations with feedback that says what was right would bring some"


def test_too_few_rows_are_nothing_to_learn_from(tmp_path: Path) -> None:
    result = data_gate(narrow([a_row(k) for k in range(5)]), tmp_path, Wanted(8, 64))
    assert not result.passed
    assert result.failures == (f"nothing to learn from: 5 rows, at least 8 wanted: {HINT}",)
    result = data_gate(narrow([]), tmp_path, Wanted(8, 64))
    assert result.failures == (f"nothing to learn from: 0 rows, at least 8 wanted: {HINT}",)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"reward": None}, r"reward: wanted known for every answer that was sampled, 1 of 17 rows"),
    ({"reward": float("nan")}, r"reward: wanted from 0 to 1, .*: inf"),
    ({"weight": float("nan")}, r"weight: wanted above 0, at most 1000, 3 of 17 rows"),
    ({"weight": 0.0}, "weight: wanted above 0"),
    ({"weight": float("inf")}, "weight: wanted above 0"),
    ({"reward": 1.5}, r"reward: wanted from 0 to 1, 3 of 17 rows miss it \(row \w{12}: "),
    ({"reward": float("inf")}, "reward: wanted from 0 to 1"),
    ({"tokens": tokens(64)}, r"tokens: wanted prompt and answer at most 64, 1 .*: 65\)"),
    ({"tokens": tokens(0)}, "answer_tokens: wanted at least 1"),
    ({"finish_reason": "length"}, "finish_reason: wanted one of stop, .*: length"),
    ({"finish_reason": None}, "finish_reason: wanted known for every answer"),
    ({"slice": ""}, "slice: wanted set"),
    ({"completion": say("assistant", " ")}, "answer_characters: wanted not empty"),
    ({"tokens": tokens(logprobs=(-1.0, 0.5))}, "highest_logprob: wanted at most 0, 3 of 17"),
    ({"tokens": tokens(logprobs=(-1.0, float("nan")))}, "highest_logprob: wanted at most 0"),
    ({"tokens": tokens(logprobs=(-1.0, float("-inf")))}, "highest_logprob: wanted at most 0"),
    ({"tokens": tokens(logprobs=(-1.0,))}, "logprobs: wanted as many as the answer has tokens"),
]


def test_each_fault_is_told_with_its_column_and_an_example(tmp_path: Path) -> None:
    result = gate(tmp_path, *(change for change, _ in FAULTS))
    assert not result.passed
    for place, (change, told) in enumerate(FAULTS):
        said = [failure for failure in result.failures if re.match(told, failure)]
        assert said, (told, result.failures)
        assert a_row(place, **change).id[:12] in said[0]


def test_the_same_row_twice_is_told(tmp_path: Path) -> None:
    rows = [*(a_row(k) for k in range(9)), a_row(0)]
    [failure] = data_gate(narrow(rows), tmp_path, Wanted(8, 64)).failures
    assert failure.startswith("row: wanted no id twice, 2 of 10 rows miss it")
    assert a_row(0).id in failure


def test_unknown_is_no_fault_where_nobody_could_know(tmp_path: Path) -> None:
    written = {"origin": "demonstration", "reward": None, "finish_reason": None, "tokens": None}
    call = Message(role="assistant", parts=(ToolCall(name="look_up", arguments="{}"),))
    called = {"completion": call, "finish_reason": "tool_calls"}
    unlogged = {"tokens": tokens(logprobs=None)}
    rounded = {"tokens": tokens(logprobs=(0.0, 1e-7))}
    assert gate(tmp_path, written, called, unlogged, rounded).failures == ()


def test_what_drifted_is_warned_of_with_its_measures_on_the_page(tmp_path: Path) -> None:
    before = [a_row(k, slice="ab"[k % 2]) for k in range(60)]
    now = [
        a_row(k, slice="bc"[k % 2], tokens=tokens(20 + k % 9, prompt_ids=(1, 2, 3)))
        for k in range(40)
    ]
    found, said = looked(tmp_path, now, Wanted(8, 64, slices=("a", "b")), *before)
    assert found.passed and said["shrink"] == said["balance"] == ()
    assert [line.partition(":")[0] for line in said["drift"]] == ["answer_tokens", "slice"]
    assert found.warnings == said["drift"] and "against dataset dddddddd, found" in said["drift"][0]
    page = found.report.read_text()
    assert "passed, with warnings" in page and "Jensen-Shannon" in page and "50 → 0%" in page
    block = Wanted(8, 64, DataGateSection(drift="block", shrink="off"))
    again, said = looked(tmp_path, now, block, *before)
    assert not again.passed and again.failures == found.warnings and said["shrink"] is None


def test_a_dataset_of_one_slice_or_one_kind_of_answer_or_of_few_rows_is_warned_of(
    tmp_path: Path,
) -> None:
    rows = [a_row(k, slice="a") for k in range(10)]
    wanted = Wanted(8, 64, both=True, slices=("a", "b"))
    found, said = looked(tmp_path, rows, wanted, *(a_row(k, slice="a") for k in range(30)))
    assert said["balance"] == (
        "slice: wanted no slice over 90%; a is the largest, found 1",
        "answers: wanted good and bad ones, neither over 90%; most are good, found 1",
    )
    assert said["shrink"] == (
        "rows: wanted at least 50% of the 30 rows of dataset dddddddd, found 0.333",
    )
    assert said["drift"] == () and found.passed


def test_the_report_stands_alone_and_escapes_what_it_shows(tmp_path: Path) -> None:
    page = gate(tmp_path, {"finish_reason": "<script>alert(1)</script>"}).report.read_text()
    assert "refused" in page and "&lt;script&gt;" in page
    assert not re.search(r"<script|<link|src=|href=|@import|url\(", page)


def test_nothing_is_written_outside_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, temporary, work = (tmp_path / name for name in ("home", "tmp", "work"))
    for folder in (home, temporary, work):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(work)
    gate(tmp_path / "gate")
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"
    assert [list(folder.iterdir()) for folder in (home, temporary, work)] == [[], [], []]
    assert sorted(path.name for path in (tmp_path / "gate").iterdir()) == ["gate.html", FILE]
