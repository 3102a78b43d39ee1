import contextlib
import os
import sys
from pathlib import Path

import pytest

from environments.define import Environment, group_reward, metric, reward
from environments.harnesses.contract import Budget, Single, Tools
from environments.load import installed, load_environment, problems_of
from environments.tasksets.contract import TaskSet
from flywheel.errors import ProjectError
from flywheel.records import Feedback, ModelCall, Span, Trace, say

FILE = """
from __future__ import annotations
import dataclasses
from pydantic import BaseModel, ConfigDict
from environments.define import Environment, metric, reward

@dataclasses.dataclass
class Part:
    size: int = 1

class Echo(Environment):
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")
        strictness: float = 1.0

    @reward(weight=2.0)
    def right(self, answer, problem):
        return answer == problem.answer

    @metric
    def length(self, answer):
        return len(answer)
"""


def project(folder: Path, source: str = FILE) -> Path:
    (folder / "environment.py").write_text(source)
    return folder


def test_an_environment_is_loaded_by_path_and_leaves_no_module_behind(tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    environment = load_environment("environment.py:Echo", project(tmp_path), {"strictness": 0.5})
    assert environment.config.strictness == 0.5  # type: ignore[attr-defined]
    assert environment.name == "echo"
    assert [method.name for method in environment.methods] == ["right", "length"]
    assert [method.mark.weight for method in environment.methods] == [2.0, 0.0]
    assert sys.path == path
    assert not [name for name in set(sys.modules) - modules if name.startswith("environment_")]


def test_files_beside_it_are_imported_graded_by_and_told_apart(tmp_path: Path) -> None:
    before, digests = (list(sys.meta_path), set(sys.modules)), set[str]()
    for folder, number in (("a", 1), ("b", 2), ("a", 3)):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / "codes.py").write_text("from further import NUMBER\n")
        (place / "further.py").write_text(f"NUMBER = {number}\n")
        (place / "json.py").write_text("raise SystemExit('in a package its place')\n")
        (place / "environment.py").write_text(
            "import json\nfrom codes import NUMBER\n"
            "from environments.define import Environment, reward\n\n\n"
            "class Numbered(Environment):\n    @reward(truth=False)\n"
            "    def number(self, answer):\n        return NUMBER\n"
        )
        environment = load_environment("environment.py:Numbered", place)
        assert environment.methods[0].name == "number"
        assert environment.number("") == number  # type: ignore[attr-defined]
        digests.add(environment.digest)
        assert not (place / "__pycache__").exists()
    assert len(digests) == 3
    assert (list(sys.meta_path), set(sys.modules)) == before
    (tmp_path / "a" / "further.py").write_text("\n1 / 0\n")
    with pytest.raises(ProjectError, match=r"ZeroDivisionError.*further.py:2"):
        load_environment("environment.py:Numbered", tmp_path / "a")
    assert (list(sys.meta_path), set(sys.modules)) == before


def test_the_digest_changes_with_source_config_and_nothing_else(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    one = load_environment("environment.py:Echo", project(first))
    same = load_environment("environment.py:Echo", project(second))
    other = load_environment("environment.py:Echo", first, {"strictness": 2})
    changed = load_environment("environment.py:Echo", project(second, FILE + "\n# new"))
    assert one.digest == same.digest
    assert len({one.digest, other.digest, changed.digest}) == 3


@pytest.mark.parametrize(
    ("path", "source", "config", "message"),
    [
        ("missing.py:Echo", FILE, {}, "missing.py"),
        ("environment.py", FILE, {}, "file.py:Class"),
        ("environment.py:Ecko", FILE, {}, "did you mean 'Echo'"),
        ("environment.py:Part", FILE, {}, "environments in it: \\['Echo'\\]"),
        ("environment.py:Echo", FILE, {"strictnes": 1}, "did you mean 'strictness'"),
        ("environment.py:Echo", FILE, {"strictness": "very"}, "strictness: .*number"),
        ("environment.py:Echo", FILE + "\n1 / 0", {}, "ZeroDivisionError"),
        ("environment.py:Echo", "def broken(:", {}, "SyntaxError"),
        ("environment.py:Echo", "import no_such_thing", {}, "no_such_thing"),
        ("environment.py:Echo", "raise SystemExit(0)", {}, "SystemExit"),
        ("environment.py:Echo", FILE.replace("answer, problem", "anwser"), {}, "'answer'"),
        ("environment.py:Echo", FILE + "\n    name = 5", {}, "Echo.name"),
        ("environment.py:Echo", FILE + "\n    name = 'a\\x1b'", {}, "Echo.name"),
        ("environment.py:Echo", FILE + "\n    def __init__(self, _): exit(0)", {}, "SystemExit: 0"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, path: str, source: str, config: dict[str, object], message: str
) -> None:
    with pytest.raises(ProjectError, match=message):
        load_environment(path, project(tmp_path, source), config)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise SystemExit(0)", "asked for its problems, does not run: SystemExit: 0"),
        ("return {}['gone']", "KeyError: 'gone' .*environment.py:"),
        ("return [1]", "has no attribute 'problems'"),
        ("from environments.tasksets.contract import Read; return Read([1], [])", "no Problem"),
    ],
)
def test_a_hook_that_gives_no_problems_is_named(tmp_path: Path, body: str, says: str) -> None:
    source = FILE + f"\n    def problems(self):\n        {body}\n"
    with pytest.raises(ProjectError, match=says):
        problems_of(load_environment("environment.py:Echo", project(tmp_path, source)))


def test_a_file_takes_the_process_nowhere(tmp_path: Path) -> None:
    here = Path.cwd()
    for source in ("import os; os.chdir('/')\n" + FILE, "import os; os.chdir('/'); 1 / 0"):
        with contextlib.suppress(ProjectError):
            load_environment("environment.py:Echo", project(tmp_path, source))
        assert Path.cwd() == here


def test_bytes_that_are_no_text_are_a_project_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ProjectError, match="it is no file"):
        load_environment("pipe.py:Echo", tmp_path)
    (tmp_path / "environment.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProjectError, match="can be read"):
        load_environment("environment.py:Echo", tmp_path)


def test_a_group_reward_must_name_the_group() -> None:
    class Wrong(Environment):
        @group_reward()
        def best(self, trace: Trace) -> float:
            return 1.0

    with pytest.raises(ProjectError, match="group"):
        _ = Wrong().methods


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(ProjectError, match="weight"):
        reward(weight=float("nan"))
    with pytest.raises(ProjectError, match="weight"):
        reward(weight=-1.0)


def test_an_overridden_method_is_listed_once_in_the_first_ones_place() -> None:
    class Base(Environment):
        @metric
        def first(self) -> float:
            return 1.0

        @metric
        def second(self) -> float:
            return 1.0

    class Child(Base):
        @reward()
        def first(self) -> float:
            return 2.0

    assert [(m.name, m.mark.kind) for m in Child().methods] == [
        ("first", "reward"),
        ("second", "metric"),
    ]
    assert (Base.name, Child.name) == ("base", "child")


def recorded(*texts: str) -> Trace:
    call = ModelCall(input=(say("system", "Be kind."), *(say("user", text) for text in texts)))
    span = Span(id="s", kind="model", call=call)
    return Trace(id="t", project="p", source="g", external_id="e", origin="production",
                 spans=(span,), conversation="c", user="u")  # fmt: skip


def said(value: object, kind: str = "demonstration") -> Feedback:
    return Feedback(project="p", target="t", kind=kind, value=value)  # type: ignore[arg-type]


def test_a_problem_is_the_first_prompt_with_what_people_said_as_truth() -> None:
    problem = Environment().problem_of(
        recorded("hi", "there"), [said("yes"), said(True, "boolean")]
    )
    assert problem is not None
    assert (problem.answer, problem.truth_from, problem.text) == ("yes", "feedback", "hi\nthere")
    assert (problem.conversation, problem.user, problem.trace_id) == ("c", "u", "t")


def test_two_answers_that_differ_are_no_truth_and_two_equal_ones_are() -> None:
    both = Environment().problem_of(
        recorded("hi"), [said({"a": 1, "b": 2}), said({"b": 2, "a": 1})]
    )
    assert both is not None and both.answer == {"a": 1, "b": 2}
    torn = Environment().problem_of(recorded("hi"), [said("yes"), said("no")])
    assert torn is not None and torn.answer is None and torn.truth_from is None
    assert torn.attributes["truth"] == "conflicting feedback: 2 different answers"


def test_a_trace_without_a_prompt_poses_no_problem() -> None:
    empty = Trace(id="t", project="p", source="g", external_id="e", origin="production")
    assert Environment().problem_of(empty, []) is None


def test_feedback_that_cannot_be_read_is_a_reason() -> None:
    class Picky(Environment):
        def truth(self, feedback: Feedback) -> object:
            return feedback.value["queue"]

    problem = Picky().problem_of(recorded("hi"), [said("just text")])
    assert problem is not None and problem.answer is None
    assert "cannot be read: TypeError" in problem.attributes["truth"]


class Needy(Environment):
    harness = Tools()

    class Config(Environment.Config):
        strictness: float = 1.0

    @reward()
    def right(self, answer: str) -> float:
        return 1.0

    @metric
    def length(self, answer: str) -> int:
        return len(answer)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"harnes": {}}, "harnes: unknown key; did you mean 'harness'"),
        ({"harness": {"kind": "tools", "paralel": 1}}, "harness.paralel: .*'parallel'"),
        ({"harness": {"kind": "tools", "budget": {"turn": 1}}}, "harness.budget.turn: .*'turns'"),
        ({"harness": {"kind": "tool"}}, "harness.kind: unknown 'tool'; did you mean 'tools'"),
        ({"runtime": {"limits": {}}}, "runtime: needs kind, one of container, "),
        ({"runtime": {"kind": "sandbox", "limits": {"wal_s": 3}}}, "limits.wal_s: .*'wall_s'"),
        ({"runtime": {"kind": "container"}}, "runtime.image: Field required"),
        ({"tasks": {"heldout": 0.5}}, "tasks.heldout: .*'heldout_share'"),
        ({"weights": {"rihgt": 2}}, "weights.rihgt: .*did you mean 'right'"),
        ({"weights": {"length": 2}}, "weights.length: 'length' is a metric"),
        ({"weights": {"right": -1}}, "weights.right: -1.0 is not a number from 0 up"),
        ({"weights": {"right": "much"}}, "weights.right: .*number"),
    ],
)
def test_every_wrong_key_is_named_with_the_nearest_right_one(
    config: dict[str, object], message: str
) -> None:
    with pytest.raises(ProjectError, match=message):
        _ = Needy(config).methods


def test_weights_and_parts_of_the_configuration_stand_instead_of_the_class_s() -> None:
    environment = Needy({
        "weights": {"right": 0.25}, "runtime": {"kind": "sandbox"},
        "harness": {"kind": "single", "budget": {"turns": 3}},
    })  # fmt: skip
    assert [method.mark.weight for method in environment.methods] == [0.25, 0.0]
    assert environment.harness.kind == "single" and environment.harness.budget.turns == 3
    assert environment.runtime is not None and environment.runtime.kind == "sandbox"


def test_what_a_part_does_not_name_stays_the_class_s() -> None:
    class Own(Environment):
        harness = Tools(parallel=False, budget=Budget(turns=9, wall_s=5))
        tasks = TaskSet(kind="made", seed=3, options={"tasks": {"a": {}, "b": {}}, "items": 5})

    own = Own({"harness": {"budget": {"turns": 8}}, "tasks": {"options": {"tasks": {"c": {}}}}})
    assert own.harness == Tools(parallel=False, budget=Budget(turns=8, wall_s=5))
    assert own.tasks == TaskSet(kind="made", seed=3, options={"tasks": {"c": {}}, "items": 5})
    elsewhere = Own({"harness": {"kind": "single"}, "tasks": {"path": "rows.jsonl"}})
    assert elsewhere.harness == Single() and elsewhere.tasks == TaskSet(path="rows.jsonl")


HEAD = """
from environments.define import *
class E(Environment):
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@reward()\ndef a(answer): return 1", "e.a lacks `self`"),
        ("@reward()\ndef a(self, **all): return 1", "must name each thing"),
        ("@reward()\ndef a(self, answer, /): return 1", "by position"),
        ("@reward()\ndef a(self, answer, tolerance): return 1", "'tolerance', never given"),
        ("@reward\ndef a(self, answer): return 1", "with parentheses above a"),
        ("@reward('2')\ndef a(self, answer): return 1", "weight of a reward"),
        ("@step_reward(of='tools')\ndef a(self, span): return 1", "of='tools'"),
        ("@step_reward()\ndef a(self, trace): return 1", "a step_reward names 'span'"),
        ("@reward()\ndef a(self, span): return 1", "no other does"),
        ("@group_reward()\ndef a(self, group, answer): return 1", "'answer' is of one trace"),
        ("@reward()\ndef a(self, judge): return 1", "write `async def`"),
        ("@reward()\nasync def a(self, sandbox): return 1", "the environment has no runtime"),
        ("@reward()\ndef a(self): return 1\n@metric\ndef a(self): return 1", "named 'a'"),
        ("class Config:\n  strict: int = 1", r"Config is no model"),
    ],
)
def test_methods_and_configs_that_cannot_work_are_errors_when_loaded(
    tmp_path: Path, body: str, message: str
) -> None:
    source = HEAD + "\n".join(" " + line for line in body.splitlines())
    with pytest.raises(ProjectError, match=message):
        load_environment("environment.py:E", project(tmp_path, source))


def test_an_argument_with_a_value_of_its_own_is_left_alone_and_static_methods_work() -> None:
    class Own(Environment):
        @reward()
        def right(self, answer: str, tolerance: float = 0.1) -> float:
            return tolerance

        @metric
        @staticmethod
        def length(answer: str) -> int:
            return len(answer)

    assert [method.arguments for method in Own().methods] == [("answer",), ("answer",)]


def test_an_environment_is_found_by_package_and_by_its_installed_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "found_by_name"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "wordy.py").write_text(FILE)
    (package / "words.py").write_text("WORDS = 1\n")
    metadata = tmp_path / "found_by_name-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: found-by-name\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[flywheel.environments]\nwordy = found_by_name.wordy:Echo\n"
        "gone = found_by_name.nowhere:Echo\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    named = load_environment("wordy", tmp_path, {"strictness": 2})
    direct = load_environment("found_by_name.wordy:Echo", tmp_path, {"strictness": 2})
    assert installed()["wordy"] == "found_by_name.wordy:Echo"
    assert named.folder == package and named.digest == direct.digest
    (package / "words.py").write_text("WORDS = 2\n")
    assert load_environment("wordy", tmp_path, {"strictness": 2}).digest != named.digest
    for path, message in {
        "wrody": "no environment named 'wrody' is installed; did you mean 'wordy'",
        "gone": "found_by_name.nowhere does not run: ModuleNotFoundError",
        "found_by_name.wordy:Ecko": "did you mean 'Echo'",
        "wordy:": "a name that is installed",
    }.items():
        with pytest.raises(ProjectError, match=message):
            load_environment(path, tmp_path)
