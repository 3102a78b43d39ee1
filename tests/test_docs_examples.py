"""The examples of docs/extending.md, put into a copy of the tree and run."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

from environments.define import Environment
from environments.golden import trace_of
from environments.grading import Item, grade, grade_all, score
from environments.judges.judge import open_judge
from environments.load import load_environment
from environments.tasksets import table as tables
from flywheel.judge_section import JudgeSection
from flywheel.project import load_project
from flywheel.records import Choice, Feedback, ModelCall, Problem, Span, Trace, say
from tests.environments.judges.scripted_judge import prompt, scripted_judge
from tests.reading_docs import PACKAGES, ROOT, blocks, cli

EXTENDING, ENVIRONMENTS = ROOT / "docs/extending.md", ROOT / "docs/environments.md"


def examples(page: Path = EXTENDING) -> dict[str, str]:
    """File -> its text, or the lines to be added to it."""
    found: dict[str, str] = {}
    for block in blocks(page):
        _, _, file = block.info.partition("file=")
        if file:
            assert file not in found
            found[file] = block.text
    return found


def write_project(folder: Path) -> Path:
    folder.mkdir()
    for name in ("environment.py", "flywheel.toml"):
        (folder / name).write_text(examples()[name])
    return folder


def receipt(answer: str, finish_reason: str = "stop") -> Trace:
    asked = say("user", "3.10\n4.15")
    choice = Choice(message=say("assistant", answer), finish_reason=finish_reason)
    span = Span(id="s", kind="model", call=ModelCall(input=(asked,), choices=(choice,)))
    return Trace(
        id="t",
        project="receipts",
        source="gateway",
        external_id="c",
        origin="production",
        spans=(span,),
    )


def test_the_environment_of_the_documents_grades(tmp_path: Path) -> None:
    project = load_project(write_project(tmp_path / "receipts"))
    environment = load_environment(
        project.environment.path, project.folder, project.environment.config
    )
    booked = Feedback(project="receipts", target="c", name="booked", value="7.25", at=1)
    other = Feedback(project="receipts", target="c", name="mood", value="9.99", at=1)
    problem = environment.problem_of(receipt("7.25"), [booked, other])
    assert problem is not None and problem.answer == 725 and problem.slice == "short"

    def scored(trace: Trace) -> float | None:
        return score(grade(environment, trace, problem))

    assert scored(receipt("7.25")) == scored(receipt("€7.26")) == 1.0
    assert scored(receipt("7.27")) == scored(receipt("about seven")) == 0.0
    assert scored(receipt("7.25", "length")) == 0.0
    unknown = environment.problem_of(receipt("7.25"), [other])
    assert score(grade(environment, receipt("7.25"), unknown)) is None
    by_name = {one.reward: one for one in grade(environment, receipt("7.25"), problem)}
    assert by_name["characters"].value == 4.0
    assert by_name["seconds"].value is None and "no times" in (by_name["seconds"].reason or "")
    timed = msgspec.structs.replace(receipt("7.25").spans[0], start=0, end=2 * 10**9)
    grades = grade(environment, msgspec.structs.replace(receipt("7.25"), spans=(timed,)), problem)
    assert {one.reward: one.value for one in grades}["seconds"] == 2.0


def test_the_judge_of_the_documents_is_asked(tmp_path: Path) -> None:
    (tmp_path / "judged.py").write_text(examples()["judged.py"])
    environment = load_environment("judged.py:Desk", tmp_path)
    with scripted_judge() as endpoint:
        endpoint.verdict = lambda body: "neither" if "<<<FIRST" in prompt(body) else 4
        judge = open_judge(JudgeSection(url=endpoint.url, model="scripted"), tmp_path)
        group = (receipt("7.25"), msgspec.structs.replace(receipt("9"), id="other"))
        items = [Item(one, group=group, judge=judge) for one in group]
        for kind, kinder in grade_all(environment, items):
            assert (kind.value, kinder.value, kind.weight) == (1.0, 0.5, 0.0)


def test_the_task_set_of_the_documents_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = examples()
    table = ROOT / "environments/tasksets/table.py"
    compile(changed(table.read_text(), said["environments/tasksets/table.py"]), "table", "exec")
    quiz = types.ModuleType("quiz")
    exec(said["environments/tasksets/quiz.py"], quiz.__dict__)
    monkeypatch.setattr(tables, "READERS", {"quiz": quiz.READER, **tables.READERS})
    rows = [{"ask": "2 + 2?", "choices": ["3", "4"], "key": key} for key in (1, 2, "B")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = Environment({"tasks": {"path": str(tmp_path / "rows.jsonl")}}).problems()
    (one,) = read.problems
    assert (one.answer, one.messages[0].text) == ("B", "2 + 2?\nA. 3\nB. 4")
    assert [(bad.line, bad.field) for bad in read.rejects] == [(2, "key"), (3, "key")]


def of_environments(folder: Path) -> Path:
    """The files of docs/environments.md, where a person would write them."""
    assert len(ENVIRONMENTS.read_text().splitlines()) <= 100
    for file, text in examples(ENVIRONMENTS).items():
        (folder / file).write_text(text)
    return folder


def test_the_smallest_environment_grades_its_problems(tmp_path: Path) -> None:
    environment = load_environment("words.py:Words", of_environments(tmp_path))
    problems = {one.split: one for one in environment.problems().problems}
    assert set(problems) == {"train", "heldout"}
    for one in problems.values():
        said = [str(environment.gold(one)), *map(str, environment.wrong(one))]
        items = [Item(trace_of(one, text, k), one) for k, text in enumerate(said)]
        assert [score(given) for given in grade_all(environment, items)] == [1.0, 0.0, 0.0, 0.0]


def test_rewards_of_every_kind_load_and_say_what_they_cannot_give(tmp_path: Path) -> None:
    environment = load_environment("rewards.py:Scripts", of_environments(tmp_path))
    methods = {one.name: one.mark for one in environment.methods}
    assert {name: mark.kind for name, mark in methods.items()} == {
        "runs": "reward", "clear": "reward", "brief": "group_reward", "worked": "step_reward",
        "close": "reward",
    }  # fmt: skip
    chosen = [one for one in environment.methods if one.name in ("clear", "brief", "worked")]
    problem = Problem(environment="scripts", messages=(say("user", "7?"),), answer="7")
    (grades,) = grade_all(environment, [Item(receipt("print(7)"), problem)], methods=chosen)
    given = {one.reward: one for one in grades}
    assert "[judge] in flywheel.toml" in (given["clear"].reason or "")
    assert "all traces of its problem" in (given["brief"].reason or "")


@pytest.mark.slow
def test_the_smallest_environment_passes_its_check(tmp_path: Path) -> None:
    words = ("env", "check", "words.py:Words", "--json")
    code, out, errors = cli(tmp_path / "home", *words, at=of_environments(tmp_path))
    assert code == 0 and json.loads(out)["passed"], (out, errors)


@pytest.mark.slow
def test_rewards_of_every_kind_run_programs_and_scripts(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    environment = load_environment("rewards.py:Scripts", of_environments(tmp_path))
    chosen = [one for one in environment.methods if one.name in ("runs", "close", "brief")]
    problem = Problem(environment="scripts", messages=(say("user", "7?"),), answer="7")
    group = [msgspec.structs.replace(receipt(text), id=text) for text in ("print(3 + 4)", "1")]
    items = [Item(one, problem, group) for one in group]
    found = grade_all(environment, items, methods=chosen, cache=tmp_path / "cache")
    values = [{one.reward: (one.value, one.reason) for one in given} for given in found]
    assert values == [
        {"runs": (1.0, None), "brief": (0.5, None), "close": (1.0, None)},
        {"runs": (0.0, None), "brief": (0.0, None), "close": (1.0, None)},
    ]


@pytest.mark.slow
def test_the_program_of_the_documents_is_compiled_and_run(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None or shutil.which("gcc", path="/usr/bin") is None:
        pytest.skip("bubblewrap or gcc is not installed")
    (tmp_path / "compiled.py").write_text(examples()["compiled.py"])
    environment = load_environment("compiled.py:Compiled", tmp_path)
    good = '#include <stdio.h>\nint main() { int n; scanf("%d", &n); printf("%d", 2 * n); }'
    items = [Item(receipt(good)), Item(receipt("int main() { return 0; }"))]
    assert [score(grades) for grades in grade_all(environment, items)] == [1.0, 0.0]


@pytest.mark.slow
def test_the_grader_script_of_the_documents_grades(tmp_path: Path) -> None:
    (tmp_path / "close.py").write_text(examples()["close.py"])
    (tmp_path / "environment.py").write_text(
        "from environments.define import Environment\n\n\n"
        'class Close(Environment):\n    graders = ("close.py",)\n'
    )
    environment = load_environment("environment.py:Close", tmp_path)
    problem = Problem(environment="close", messages=(say("user", "3.10\n4.15"),), answer="7.25")
    items = [Item(receipt("7.25"), problem), Item(receipt("none at all"), problem)]
    right, wrong = grade_all(environment, items, cache=tmp_path / "cache")
    assert score(right) == 1.0 and [one.value for one in right] == [1.0, 1.0]
    assert score(wrong) == 0.0 and wrong[1].value == 3.0


def extended_tree(root: Path) -> Path:
    """A copy of the packages with the documents' files and lines put in."""
    for top in PACKAGES:
        shutil.copytree(ROOT / top, root / top, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in examples().items():
        if not file.startswith("storage/"):
            continue
        if file.endswith("__init__.py"):
            (root / file).write_text(changed((root / file).read_text(), text))
        else:
            assert not (root / file).exists()
            (root / file).write_text(text)
    return root


def changed(text: str, difference: str) -> str:
    """Applies the lines of a diff: its context must stand in `text`, in this order."""
    lines, at = text.splitlines(), 0
    for line in difference.splitlines():
        sign, content = line[:1], line[1:]
        if sign == "+":
            lines.insert(at, content)
            at += 1
        else:
            at = lines.index(content, at) + 1
            if sign == "-":
                at -= 1
                del lines[at]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_the_format_of_the_documents_imports(tmp_path: Path) -> None:
    root = extended_tree(tmp_path / "tree")
    project = write_project(tmp_path / "receipts")
    rows = [
        {"question": "3 and 4?", "answer": "7", "agent": "Ana"},
        {"question": "3 and 4?", "answer": 7},
        {"messages": [{"role": "user", "content": "hi"}]},
    ]
    logs = tmp_path / "rows.jsonl"
    logs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("import", str(logs), "--project", str(project), "--json")
    code, out, _ = cli(tmp_path / "home", *words, at=root, root=root)
    found = json.loads(out)
    assert code == 0
    assert found["formats"] == {"chat_rows": 1, "questions": 1}
    assert found["traces"] == 2 and found["unmapped_fields"] == {"agent": 1}
    assert [(one["line"], one["field"]) for one in found["rejects"]] == [(2, "answer")]
    again = json.loads(cli(tmp_path / "home", *words, at=root, root=root)[1])
    assert again["traces"] == 0


RULE_SCRIPT = """
import sys, tomllib
from flywheel.curate_section import CurateSection
from flywheel.records import say
from flywheel.rows import TrainingRow
from storage import curate
assert curate.__file__.startswith(sys.argv[1]), curate.__file__
section = CurateSection.model_validate(tomllib.load(open(sys.argv[2], "rb"))["curate"])
def row(answer):
    return TrainingRow(
        trace_id=answer, span_id="s", messages=(say("user", "help"),),
        completion=say("assistant", answer),
    )
rows = [row("Yes."), row("As an AI I may not."), row("Sorry, I cannot help here.")]
made = curate.curate(rows, curate.rule_specs(section), (), 0.7)
assert [one.completion.text for one in made.rows] == ["Yes."], made
assert sorted(one.reason for one in made.dropped) == [
    "the answer says 'I cannot help'", "the answer says 'as an AI'"
], made.dropped
"""


@pytest.mark.slow
def test_the_rule_of_the_documents_curates(tmp_path: Path) -> None:
    root = extended_tree(tmp_path / "tree")
    (tmp_path / "rules.toml").write_text(examples()["rules.toml"])
    subprocess.run(
        [sys.executable, "-c", RULE_SCRIPT, str(root), str(tmp_path / "rules.toml")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=True,
        timeout=120,
    )


def test_examples_read_as_the_house_does(tmp_path: Path) -> None:
    for file, text in {**examples(), **examples(ENVIRONMENTS)}.items():
        if file.endswith(".py") and not file.endswith(("__init__.py", "table.py")):
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    config = str(ROOT / "pyproject.toml")
    ruff = [sys.executable, "-m", "ruff"]
    for verb in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *verb, "--config", config, "--no-cache", str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
