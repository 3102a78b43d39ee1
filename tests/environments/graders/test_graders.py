from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.define import Environment
from environments.graders.interpreter import interpreter
from environments.graders.script import read
from environments.grading import Item, grade_all
from environments.load import load_environment
from flywheel.errors import MissingPart, ProjectError
from flywheel.records import Choice, Grade, ModelCall, Problem, Span, Trace, say

HEAD = """# A grader.
# /// script
# requires-python = ">=3.11"
# dependencies = []
# [tool.flywheel]
# rewards = { close = 2.0 }
# metrics = ["length"]
# ///
"""
BODY = """
import json, os, sys, time

for line in sys.stdin:
    asked = json.loads(line)
    said = {"id": asked["id"], "close": 0.5, "length": len(asked["answer"])}
    match asked["answer"]:
        case "right":
            said["close"] = float(asked["problem"]["answer"] == "right")
        case "null":
            said["close"] = None
        case "nan":
            said["close"] = float("nan")
        case "text":
            said["close"] = "0.5"
        case "error":
            said = {"id": asked["id"], "error": "no verdict"}
        case "extra":
            said["closer"] = 1
        case "babble":
            print("hello")
        case "twice":
            print(json.dumps(said))
        case "other":
            said["id"] += 1
        case "die":
            print("I die", file=sys.stderr)
            os._exit(4)
        case "hang":
            time.sleep(3600)
        case "flood":
            sys.stderr.write("e" * (1 << 20))
            sys.stdout.write("x" * (2 << 20))
    print(json.dumps(said))
"""
ENVIRONMENT = """
from environments.define import Environment, reward

class Scripted(Environment):
    graders = ("grader.py",)
    long_limit_s = 10.0

    @reward()
    def same(self, answer, problem):
        return answer == problem.answer
"""
ASKED = (say("user", "?"),)
PROBLEM = Problem(environment="scripted", messages=ASKED, answer="right", truth_from="feedback")


def project(folder: Path, head: str = HEAD, body: str = BODY) -> Path:
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "grader.py").write_text(head + body)
    return folder


def loaded(folder: Path, config: dict[str, Any] | None = None) -> Environment:
    return load_environment("environment.py:Scripted", folder, config)


def trace(answer: str) -> Trace:
    choice = Choice(message=say("assistant", answer), finish_reason="stop")
    span = Span(id="s", kind="model", call=ModelCall(input=ASKED, choices=(choice,)))
    fields = {"project": "p", "source": "r", "external_id": "x", "origin": "rollout"}
    return Trace(id=answer, spans=(span,), **fields)  # type: ignore[arg-type]


def named(grades: Sequence[Grade], name: str) -> Grade:
    return next(grade for grade in grades if grade.reward == name)


def test_a_script_s_keys_are_rewards_and_metrics_of_the_environment(tmp_path: Path) -> None:
    environment = loaded(project(tmp_path), {"weights": {"close": 0.5}})
    assert [(one.name, one.mark.kind, one.mark.weight) for one in environment.methods] == [
        ("same", "reward", 1.0), ("close", "reward", 0.5), ("length", "metric", 0.0),
    ]  # fmt: skip
    before = environment.digest
    (tmp_path / "grader.py").write_text(HEAD + BODY + "\n# changed")
    assert loaded(tmp_path, {"weights": {"close": 0.5}}).digest != before


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("", "needs one `# /// script` block"),
        (HEAD + HEAD, "and has 2"),
        (HEAD.replace("[tool", "tool"), r"grader.py:2: .*no TOML"),
        (HEAD.replace("dependencies", "dependancies"), "did you mean 'dependencies'"),
        (HEAD.replace("rewards =", "reward ="), r"\[tool.flywheel\].*\n.*did you mean 'rewards'"),
        (HEAD.replace('["length"]', '["close"]'), "each key that the script gives once"),
        (HEAD.replace('"length"', '"same"'), "gives 'same', and so does scripted"),
    ],
)
def test_a_head_that_does_not_fit_is_an_error_with_its_place(
    tmp_path: Path, head: str, message: str
) -> None:
    with pytest.raises(ProjectError, match=message):
        loaded(project(tmp_path, head))


def test_a_script_that_is_not_there_or_wants_another_python_is_an_error(tmp_path: Path) -> None:
    project(tmp_path, HEAD.replace(">=3.11", ">=4"))
    with pytest.raises(ProjectError, match="wants Python >=4"):
        interpreter(read(tmp_path / "grader.py"), tmp_path / "cache")
    (tmp_path / "grader.py").unlink()
    with pytest.raises(ProjectError, match="no grader can be read at"):
        loaded(tmp_path)


@pytest.mark.slow
def test_a_script_grades_and_what_it_does_wrong_is_null_for_that_trace_alone(
    tmp_path: Path,
) -> None:
    environment = loaded(project(tmp_path))
    said = ("right", "null", "nan", "text", "error", "extra", "die", "babble", "yes")
    items = [Item(trace(one), PROBLEM) for one in said]
    unknown = Item(trace("unknown"), Problem(environment="scripted", messages=ASKED))
    graded = grade_all(environment, [*items, unknown], cache=tmp_path / "cache")
    close = {grades[0].trace_id: named(grades, "close") for grades in graded}
    assert {name: one.value for name, one in close.items() if one.value is not None} == {
        "right": 1.0, "yes": 0.5,
    }  # fmt: skip
    for name, why in {
        "null": "gave no 'close'", "nan": "no finite number", "text": "not a number",
        "error": "no verdict", "extra": "gave 'closer', which it does not declare; did you mean",
        "die": "ended before it answered\nI die", "babble": "hello", "unknown": "no known answer",
    }.items():  # fmt: skip
        assert why in (close[name].reason or "")
    assert close["right"].confirmed_by == "feedback" and close["right"].weight == 2.0
    lengths = [named(grades, "length").value for grades in graded]
    assert lengths == [5.0, 4.0, 3.0, 4.0, None, None, None, None, 3.0, None]
    assert [named(grades, "same").value for grades in graded][:2] == [1.0, 0.0]


@pytest.mark.slow
def test_a_script_that_hangs_floods_or_answers_for_another_is_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    environment = loaded(project(tmp_path))
    type(environment).long_limit_s = 3.0
    said = ("yes", "hang", "flood", "other", "yes", "yes")
    graded = grade_all(
        environment, [Item(trace(one), PROBLEM) for one in said], cache=tmp_path / "cache"
    )
    close = [named(grades, "close") for grades in graded]
    assert [one.value for one in close] == [0.5, None, None, None, None, None]
    for one, why in zip(
        close[1:], ("took longer than 3 s", "over 1 MiB", "is no object with", "not tried"),
        strict=False,
    ):  # fmt: skip
        assert why in (one.reason or "")


@pytest.mark.slow
def test_packages_are_installed_once_and_one_that_cannot_be_had_is_an_error(
    tmp_path: Path,
) -> None:
    wheel = small_wheel(tmp_path)
    head = HEAD.replace("[]", f'["tiny-grader @ {wheel.as_uri()}"]')
    body = BODY.replace("import json", "import tiny_grader, json").replace(
        'said["close"] = float', 'said["close"] = tiny_grader.HALF * float'
    )
    environment = loaded(project(tmp_path, head, body))
    items = [Item(trace("right"), PROBLEM)]
    for _ in range(2):
        (grades,) = grade_all(environment, items, cache=tmp_path / "cache")
        assert named(grades, "close").value == 0.5
        wheel.unlink(missing_ok=True)  # the second time it is not asked for
    gone = HEAD.replace("[]", f'["gone @ {wheel.as_uri()}"]')
    with pytest.raises(MissingPart, match=r"gone @ [^;]*package index \(is it reachable"):
        grade_all(loaded(project(tmp_path, gone, body)), items, cache=tmp_path / "cache")


def small_wheel(folder: Path) -> Path:
    """A package as the index would hold it, so that the test needs none."""
    import zipfile

    wheel = folder / "tiny_grader-1-py3-none-any.whl"
    info = "tiny_grader-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_grader.py", "HALF = 0.5\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-grader\nVersion: 1\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel
