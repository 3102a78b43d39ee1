"""An evaluation from its first call to the store: counted once, whatever fails or is killed."""

import contextlib
import errno
import gc
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from app.evaluation_words import shown
from flywheel.errors import Busy, EngineError, Full
from serving.interception import Served
from storage.judgements import grades
from storage.queries import problems, traces
from tasks.eval import evaluate
from tasks.eval_log import opened
from tasks.eval_summary import Price
from tests.tasks.answering import Model, answering, last_number
from tests.tasks.evaluating import evaluated, lines, setting


def test_every_attempt_is_played_graded_and_in_the_store_once(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=4, samples=3, price=Price(1.0, 2.0))
    with answering(last_number) as model:
        found = evaluated(made, model)
        assert len(model.requests) == 12
    assert found["episodes"] == {
        "planned": 12, "done": 12, "graded": 12, "not_graded": 0, "infrastructure": 0,
    }  # fmt: skip
    assert found["reward"]["mean"] == 0.5 and found["reward"]["problems"] == 4
    assert [(one["any"], one["all"]) for one in found["pass"]] == [(0.5, 0.5)] * 3
    assert {one["name"]: one["mean"] for one in found["slices"]} == {"even": 0.0, "odd": 1.0}
    assert found["tokens"]["output"] == 60
    assert found["cost"]["usd"] == pytest.approx(12 * (10 + 2 * 5) / 1e6)
    assert found["ended"] == {"answered": 12}
    kinds = [(one["name"], one["kind"], one["mean"]) for one in found["rewards"]]
    assert kinds == [("right", "reward", 0.5), ("polite", "step", 0.5), ("words", "metric", 1.0)]

    kept = [one for batch in traces(made.home, origin="evaluation") for one in batch]
    assert len(kept) == 12 and {one.run_id for one in kept} == {made.run_id}
    given = grades(made.home, run_id=made.run_id)
    assert len(given) == 36 and len(problems(made.home)) == 4
    assert json.loads((made.folder / "summary.json").read_text())["run"] == made.run_id
    assert (made.folder / "done").exists()


@pytest.mark.parametrize("status", [400, 500])
def test_a_key_that_the_server_repeats_is_kept_nowhere(tmp_path: Path, status: int) -> None:
    made, key = setting(tmp_path, problems=1, samples=1), "sk-very-secret"

    class Telling(Model):
        async def chat(self, request: web.Request) -> web.StreamResponse:
            said = f"who is {request.headers['authorization']}?"
            return web.json_response({"error": {"message": said}}, status=status)

    with answering(last_number, kind=Telling) as model, contextlib.suppress(EngineError):
        evaluate(made, Served(model.url, "scripted", key=key, tokens=False))
    kept = [path for path in made.home.root.rglob("*") if path.is_file()]
    assert any(b"who is Bearer [key]?" in path.read_bytes() for path in kept)
    assert not [path for path in kept if b"very-secret" in path.read_bytes()]


def test_an_attempt_whose_machine_fails_is_no_answer_and_is_made_again(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=4, samples=2)

    def shaky(body: dict[str, Any]) -> str | int:
        return (
            503 if re.search(r"of 12 and", body["messages"][-1]["content"]) else last_number(body)
        )

    with answering(shaky) as model:
        found = evaluated(made, model)
    assert found["episodes"]["infrastructure"] == 2 and found["episodes"]["done"] == 6
    assert found["reward"]["problems"] == 3
    assert not (made.folder / "done").exists()
    assert sum(len(batch) for batch in traces(made.home, origin="evaluation")) == 6
    with answering(last_number) as model:
        found = evaluated(made, model)
        assert len(model.requests) == 2
    assert found["episodes"] == {
        "planned": 8, "done": 8, "graded": 8, "not_graded": 0, "infrastructure": 0,
    }  # fmt: skip
    assert sum(len(batch) for batch in traces(made.home, origin="evaluation")) == 8


def test_when_nothing_can_be_had_the_reason_is_told_and_the_run_can_go_on(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=1, samples=1)
    with answering(lambda _: 503) as model, pytest.raises(EngineError, match="all 1 episodes"):
        evaluated(made, model)
    with answering(last_number) as model:
        assert evaluated(made, model)["episodes"]["done"] == 1


def test_what_cannot_be_graded_is_null_with_its_reason(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=2, samples=1)
    with answering(lambda _: "nan") as model:
        found = evaluated(made, model)
    assert found["episodes"]["not_graded"] == 2
    assert found["reward"]["mean"] is None
    assert found["cost"]["usd"] is None and "--price-input" in found["cost"]["reason"]
    assert any("no finite number" in reason for reason in found["not_graded"])
    assert found["pass"][0] == {"k": 1, "any": None, "all": None, "problems": 0}
    assert "no finite number" in shown(found)


def test_a_group_is_graded_whole(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=3, samples=3, class_="Shortest")
    with answering(last_number) as model:
        found = evaluated(made, model)
    shortest = next(one for one in found["rewards"] if one["name"] == "shortest")
    assert shortest["mean"] == 3.0
    assert found["pass"][0]["any"] == 1 / 3  # judged without what the group gives
    again = evaluated(made, model)  # nothing is left, and nobody is asked
    assert again["reward"] == found["reward"]


def test_a_torn_end_counts_as_never_written(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=3, samples=2)
    with answering(last_number) as model:
        first = evaluated(made, model)
    log = made.folder / "results.jsonl"
    whole = log.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in (ends[2] + 40, ends[7] + 1, len(whole) - 1):
        log.write_bytes(whole[:cut] + (b"\0" * 64 if cut == ends[7] + 1 else b""))
        with answering(last_number) as model:
            again = evaluated(made, model)
        kinds = [one["type"] for one in lines(made)]
        assert kinds.count("episode") == kinds.count("grades") == 6
        assert again["reward"] == first["reward"]
    assert sum(len(batch) for batch in traces(made.home, origin="evaluation")) == 6


def test_a_disk_that_fills_up_is_told_once_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, write, room = setting(tmp_path, problems=4, samples=2), os.write, iter(range(4))

    def full(file: int, data: bytes) -> int:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with answering(last_number) as model:
        with monkeypatch.context() as patch, pytest.raises(Full, match="no space left"):
            patch.setattr("tasks.eval_log.os.write", full)
            evaluated(made, model)
        gc.collect()
        assert not [one for one in caplog.records if "never retrieved" in one.message]
        found = evaluated(made, model)
    assert found["episodes"]["done"] == 8 and found["reward"]["mean"] == 0.5
    kinds = [one["type"] for one in lines(made)]
    assert kinds.count("episode") == kinds.count("grades") == 8


def test_one_process_has_a_run(tmp_path: Path) -> None:
    made = setting(tmp_path, problems=1, samples=1)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with opened(made.folder / "results.jsonl"):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(60)
        with answering(last_number) as model, pytest.raises(Busy, match="another process"):
            evaluated(made, model)
    finally:
        leave.set()
        thread.join()


def test_a_judged_reward_without_weight_is_said_to_move_nothing() -> None:
    from environments.judges.standing import INFORMS
    from flywheel.records import Grade
    from tasks.eval_row import Row, graded_row
    from tasks.eval_summary import summarise

    grades = [
        Grade(trace_id="t", reward="right", value=1.0),
        Grade(trace_id="t", reward="clear", value=0.2, weight=0.0,
              reason=f"said so ({INFORMS}kappa is 0.1)"),
    ]  # fmt: skip
    row = graded_row(Row(problem="p", attempt=0), grades)
    found = summarise([row], planned=1, samples=1, pass_mark=1.0, price=Price())
    assert row.score == 1.0 and found["informing"] == {"clear": "kappa is 0.1"}
