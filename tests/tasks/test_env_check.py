"""What `flywheel env check` sees, and what `flywheel env new` writes."""

import importlib.util
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from app.environment_new import write_environment
from flywheel.errors import ProjectError, UsageError
from tasks.env_build import build, declared, place_of
from tasks.env_check import Checked, check
from tasks.env_list import listed
from tests.app.calling import ROOT

BROKEN = """
import random
from environments.define import Environment, reward
from environments.tasksets.contract import TaskSet

class Broken(Environment):
    tasks = TaskSet(path="problems.jsonl", heldout_share=0.5, near_duplicate=0.9)

    @reward()
    def right(self, problem, answer):
        return 0.9 if answer == str(problem.answer) else 0.6

    @reward(weight=0.1)
    def by_hash(self, answer):
        return (hash(answer) % 1000) / 1000

    def wrong(self, problem):
        return ["nonsense"]
"""


def findings(found: Checked) -> dict[str, bool | None]:
    return {one.check: one.ok for one in found.findings}


def test_a_new_environment_holds_what_it_promises(tmp_path: Path) -> None:
    folder = tmp_path / "word-problems"
    written = write_environment(folder)
    assert "flywheel_env_word_problems/environment.py" in written and "pyproject.toml" in written
    assert declared(folder) == {
        "word-problems": "flywheel_env_word_problems.environment:WordProblems"
    }
    found = check("environment.py:WordProblems", folder / "flywheel_env_word_problems", {})
    assert found.passed and found.gold == 24, found
    assert set(findings(found).values()) == {True}
    with pytest.raises(UsageError, match="there already"):
        write_environment(folder)
    with pytest.raises(UsageError, match="letter"):
        write_environment(tmp_path / "9")


def test_each_thing_that_is_wrong_is_found(tmp_path: Path) -> None:
    (tmp_path / "environment.py").write_text(BROKEN)
    rows = [{"prompt": f"what is {n} and {n}", "answer": str(2 * n)} for n in range(30)]
    lines = [json.dumps(row) for row in [*rows, {"answer": 3}]]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines))
    found = check("environment.py:Broken", tmp_path, {})
    assert findings(found) == {
        "problems load": False,
        "both sides": True,
        "no leaks": True,
        "gold answers": False,
        "wrong answers": False,
        "answers told apart": True,
        "deterministic": False,
    }
    told = {one.check: one.found for one in found.findings}
    assert "1 unreadable" in told["problems load"] and "by_hash" in told["deterministic"]
    with pytest.raises(ProjectError, match="Nobody"):
        check("environment.py:Nobody", tmp_path, {})


def test_gold_goes_the_whole_way_of_tools(tmp_path: Path) -> None:
    """The tool must be called for the state to be right: no trace made by hand could show that."""
    (tmp_path / "environment.py").write_text("""
from environments.define import Environment, reward, setup
from environments.harnesses.contract import Tool, Tools
from environments.tasksets.contract import TaskSet
from flywheel.records import Message, ToolCall, say

class Counter(Environment):
    harness = Tools()
    tasks = TaskSet(path="problems.jsonl", heldout_share=1.0, near_duplicate=None)

    def tools(self, episode):
        def add(n: int) -> str:
            episode.state["sum"] = episode.state.get("sum", 0) + n
            return "added"
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return [Tool("add", "adds", schema, add)]

    @reward()
    def summed(self, problem, state):
        return state.get("sum") == problem.answer

    def gold(self, problem):
        call = ToolCall(name="add", arguments='{"n": %d}' % problem.answer, id="1")
        return [Message(role="assistant", parts=(call,)), say("assistant", "done")]
""")
    (tmp_path / "problems.jsonl").write_text('{"prompt": "a", "answer": 4}\n'
                                             '{"prompt": "b", "answer": 7}')  # fmt: skip
    found = check("environment.py:Counter", tmp_path, {})
    told = {one.check: one for one in found.findings}
    assert told["gold answers"].ok and told["gold answers"].found.startswith("2 of 2"), found


def test_what_breaks_in_every_episode_or_reward_does_not_hold_and_is_told_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "environment.py").write_text("""
from environments.define import Environment, reward
from environments.tasksets.contract import TaskSet

class Acts(Environment):
    tasks = TaskSet(path="problems.jsonl", heldout_share=1.0, near_duplicate=None)

    async def act(self, episode):
        return None + 1

    @reward()
    def right(self, problem, answer):
        return answer == problem.answer

class Raises(Acts):
    act = Environment.act

    @reward()
    def right(self, problem, answer):
        raise LookupError("nowhere")
""")
    rows = [{"prompt": f"what is {n}", "answer": str(n)} for n in range(4)]
    (tmp_path / "problems.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    acts, raises = (check(f"environment.py:{name}", tmp_path, {}) for name in ("Acts", "Raises"))
    assert not acts.passed and findings(acts)["gold by the harness"] is False
    told = {one.check: one.found for one in raises.findings}
    assert findings(raises)["gold answers"] is False
    assert findings(raises)["answers told apart"] is None is findings(raises)["deterministic"]
    assert told["gold answers"].count("nowhere") == 1 and "3 answers more" in told["gold answers"]
    assert "environment.py:20" in told["gold answers"] and "Traceback" not in str(told)


@pytest.mark.slow
def test_the_new_one_passes_its_test_and_is_found_where_its_wheel_is_installed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sums"
    write_environment(folder)
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr
    built = build(folder)
    assert built.wheel.is_file() and built.archive.is_file() and built.names == ("sums",)
    assert not (folder / "build").exists()
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=False, system_site_packages=False)
    site = next(fresh.glob("lib/python*/site-packages"))
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps",
         "--no-index", "--target", str(site), str(built.wheel)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    code = (
        "from importlib.metadata import entry_points\n"
        "(one,) = entry_points(group='flywheel.environments')\nprint(one.name, one.value)"
    )
    said = subprocess.run(
        [fresh / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert said.stdout.strip() == "sums flywheel_env_sums.environment:Sums", said.stderr
    before = built.wheel.read_bytes()
    (folder / "flywheel_env_sums" / "problems.jsonl").unlink()
    with pytest.raises(ProjectError, match=r"flywheel_env_sums/problems\.jsonl: no such task set"):
        build(folder)
    assert built.wheel.read_bytes() == before
    assert sorted((folder / "dist").iterdir()) == sorted([built.wheel, built.archive])


def test_a_folder_means_the_environment_that_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert place_of("desk") == ("desk", Path())
    write_environment(tmp_path / "sums")
    assert place_of(str(tmp_path / "sums")).path == "flywheel_env_sums.environment:Sums"
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        place_of(str(tmp_path))
    for text in ("project = [1]", "[project]\nentry-points = 3", ""):
        (tmp_path / "pyproject.toml").write_text(text)
        with pytest.raises(UsageError, match="declares no environment"):
            place_of(str(tmp_path))


def test_where_no_folder_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        write_environment(tmp_path / "file" / "sums")


def test_a_package_that_does_not_run_is_a_line_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("quits", "raises"):
        (tmp_path / name).mkdir()
        code = "raise SystemExit(0)" if name == "quits" else "1 / 0"
        (tmp_path / name / "__init__.py").write_text(code)
        about = tmp_path / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        point = f"[flywheel.environments]\n{name} = {name}.environment:One\n"
        (about / "entry_points.txt").write_text(point)
    monkeypatch.syspath_prepend(tmp_path)
    found = {one["name"]: one for one in listed()}
    reasons = {name: one["reason"] for name, one in found.items()}
    assert found["math"]["about"].startswith("Problems whose answer is one number")
    assert all(one["about"] or one["reason"] for one in found.values())
    here = importlib.util.find_spec("reasoning_gym") is not None
    assert here or "make install-reasoning" in found["reasoning"]["lacks"]
    assert "SystemExit" in reasons["quits"] and "ZeroDivisionError" in reasons["raises"]
