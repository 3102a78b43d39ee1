"""`flywheel eval` as it is typed: what is wrong is told, a kill loses nothing, a model is anything
that answers."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from app.commands.eval_ import command
from flywheel.errors import FlywheelError, UsageError
from flywheel.home import Home
from storage.judgements import grades
from storage.queries import traces
from tests.app.calling import FLYWHEEL, ROOT, Said, surroundings
from tests.promoted import SORTING
from tests.tasks.answering import answering, last_number
from tests.tasks.evaluating import write_sums

Flywheel = Callable[..., Said]


def at(folder: Path) -> str:
    return f"{folder}/environment.py:Sums"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--model"),
        (("--model", "http://u:secret@h"), "--key-env"),
        (("--model", "base"), "NAME-vN"),
        (("--model", "nobody-v3"), "--project"),
        (("--model", "http://127.0.0.1:1", "--key-env", "NOT_SET_HERE"), "NOT_SET_HERE"),
        (("--resume",), "no evaluation is left unfinished"),
        (("--model", "http://127.0.0.1:1", "--config", "tolerance"), "KEY=VALUE"),
        (("--model", "http://127.0.0.1:1", "--config", "weigths=1"), "'weights'"),
        (("--model", "http://127.0.0.1:1", "--config", "x=" + "[" * 9999), "unknown key"),
    ],
)
def test_what_does_not_fit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLYWHEEL_MODELS", str(tmp_path / "models"))
    with pytest.raises(UsageError) as told:
        command.main([at(write_sums(tmp_path / "sums")), *arguments], standalone_mode=False)
    assert says in str(told.value) and "secret" not in str(told.value)


@pytest.mark.parametrize("option", ["--temperature", "--pass-mark", "--price-input"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_that_is_none_is_refused(option: str, value: str) -> None:
    with pytest.raises(click.BadParameter):
        command.main(["x", option, value], standalone_mode=False)


def test_a_model_that_is_not_there_ends_with_its_reason(flywheel: Flywheel, tmp_path: Path) -> None:
    folder = write_sums(tmp_path / "sums")
    said = flywheel("eval", at(folder), "--model", "http://127.0.0.1:1", "--json")
    assert said.code == 1 and "no model answers at http://127.0.0.1:1" in said.object()["error"]


def test_where_nothing_can_be_graded_the_reasons_are_printed_and_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    folder = write_sums(tmp_path / "sums", 1)
    with (folder / "problems.jsonl").open("a") as file:
        file.write('\n{"answer": 3}')
    with answering(lambda _: "nan") as model, pytest.raises(FlywheelError, match="finite") as told:
        command.main([at(folder), "--model", model.url, "--n", "2"], standalone_mode=False)
    assert told.value.exit_code == 1
    printed = capsys.readouterr().out
    assert "2 times: right:" in printed and "problems.jsonl:2" in printed


@pytest.mark.slow
def test_a_run_goes_on_as_it_was_or_not_at_all(flywheel: Flywheel, tmp_path: Path) -> None:
    folder, home = write_sums(tmp_path / "sums", 3), tmp_path / "home"
    with answering(last_number) as model:
        asked = ("--model", model.url, "--n", 1, "--pass-mark", 0, "--price-input", 1,
                 "--price-output", 2)  # fmt: skip
        whole = flywheel("eval", at(folder), *asked, "--json").object()
        (run,) = (home / "evals").iterdir()
        (run / "done").unlink()
        other = flywheel("eval", "--resume", run.name, "--n", "2", "--json")
        assert other.code == 3
        assert "--n: 1 then, 2 now" in other.object()["error"]
        before = len(model.requests)
        again = flywheel("eval", "--resume", "--json")
        assert again.code == 0 and again.object() == whole
        assert whole["pass"][0]["any"] == 1.0 and whole["cost"]["usd"] > 0
        (run / "done").unlink()
        assert flywheel("eval", "--resume", "--pass-mark", 1, "--json").object()["pass_mark"] == 1
        assert len(model.requests) == before
    listed = flywheel("eval", "--list", "--json").object()["evaluations"]
    assert [one["state"] for one in listed] == ["done"]


def begun(home: Path, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*FLYWHEEL, "eval", *arguments], env=surroundings(home, **more), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_lines(home: Path, count: int) -> Path:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for log in home.glob("evals/*/results.jsonl"):
            if log.read_bytes().count(b"\n") >= count:
                return log
        time.sleep(0.02)
    raise AssertionError(f"{count} lines did not come")


@pytest.mark.slow
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """-9 amid the calls, after a line was written, and between the store and its mark."""
    folder, home = write_sums(tmp_path / "sums", 40), tmp_path / "home"
    with answering(last_number, delay=0.05) as model:
        first = begun(home, at(folder), "--model", model.url, "--n", "3", "--concurrency", "4")
        log = wait_for_lines(home, 20)
        first.kill()
        first.communicate(timeout=60)
        acknowledged = [json.loads(one) for one in log.read_bytes().split(b"\n")[:-1]]
        for point in ("eval.written", "eval.sent"):
            killed = begun(home, "--resume", FLYWHEEL_FAILPOINT=point)
            killed.communicate(timeout=120)
            assert killed.returncode == -signal.SIGKILL
        last = begun(home, "--resume", "--json")
        out, err = last.communicate(timeout=120)
        assert last.returncode == 0, err
    found = json.loads(out)
    assert found["episodes"]["done"] == found["episodes"]["graded"] == 120
    assert found["reward"]["mean"] == 0.5
    entries = [json.loads(one) for one in log.read_text().splitlines()]
    played = [(one["problem"], one["attempt"]) for one in entries if one["type"] == "episode"]
    assert len(played) == len(set(played)) == 120
    assert entries[: len(acknowledged)] == acknowledged
    # Under way, or answered and not graded yet, at each kill: more where the machine is busy.
    assert len(model.requests) <= 120 + 3 * 32
    kept = [one for batch in traces(Home(home), origin="evaluation") for one in batch]
    assert len(kept) == 120
    assert len(grades(Home(home), run_id=found["run"])) == 360


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder, home = write_sums(tmp_path / "sums", 40), tmp_path / "home"
    with answering(last_number, delay=0.1) as model:
        running = begun(home, at(folder), "--model", model.url, "--concurrency", "2")
        log = wait_for_lines(home, 6)
        os.kill(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert f"`flywheel eval --resume {log.parent.name}` goes on" in err and "Traceback" not in err
    assert (log.parent / "report.html").exists() and not (log.parent / "done").exists()


@pytest.mark.slow
def test_a_base_model_is_served_for_the_time_of_the_run(flywheel: Flywheel, tmp_path: Path) -> None:
    """The tests' tiny model on problems of a file, with token ids, by our own engine."""
    environment = tmp_path / "environment.py"
    environment.write_text(
        "from environments.define import Environment, reward\n"
        "from environments.tasksets.contract import TaskSet\n\n"
        "class Digits(Environment):\n"
        "    tasks = TaskSet(path='problems.jsonl', heldout_share=1.0)\n\n"
        "    @reward()\n"
        "    def right(self, problem, answer):\n"
        "        return answer.strip() == problem.answer\n"
    )
    rows = ({"prompt": one, "answer": "".join(sorted(one))} for one in ("312", "54", "9081"))
    (tmp_path / "problems.jsonl").write_text("\n".join(json.dumps(one) for one in rows))
    said = flywheel(
        "eval", f"{environment}:Digits", "--model", "base", "--project", SORTING,
        "--n", "2", "--max-tokens", "12", "--temperature", "0.7", "--json",
    )  # fmt: skip
    found: dict[str, Any] = said.object()
    assert said.code == 0 and found["episodes"]["graded"] == 6, said
    home = Home(tmp_path / "home")
    kept = [one for batch in traces(home, origin="evaluation") for one in batch]
    calls = [span.call for one in kept for span in one.spans if span.call]
    assert len(calls) == 6
    assert all(call.choices[0].tokens and call.deployment == "sorting-v0" for call in calls)
    assert not home.server.exists()
