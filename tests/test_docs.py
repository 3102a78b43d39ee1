"""The documents say what is there: commands, targets, links, names of code, and whole examples."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import pytest

from app.cli import flywheel
from environments.grading import grade, score
from environments.load import load_environment
from flywheel.project import load_project
from flywheel.records import Choice, Feedback, ModelCall, Span, Trace, say

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + [path for top in ("docs", "examples", "app/template") for path in (ROOT / top).rglob("*.md")]
)
PACKAGES = ("app", "environments", "flows", "flywheel", "serving", "storage", "tasks", "trainer")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "examples", "scripts", "docs", "locks")


SHELL = ("", "sh", "console")
"""Fences whose lines are commands."""
DATA = ("flywheel.toml", "flywheel.duckdb")
"""Files that look like names of a package."""


class Block(NamedTuple):
    info: str
    """What stands behind the opening fence."""
    text: str


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_document = pytest.mark.parametrize("path", DOCS, ids=named)


def blocks(path: Path) -> list[Block]:
    found = re.findall(r"^```(.*?)\n(.*?)^```$", path.read_text(), re.M | re.S)
    return [Block(info.strip(), text) for info, text in found]


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)


def commands(path: Path) -> Iterator[list[str]]:
    """The words of every `flywheel …` and `make …` that stands alone, in code of any kind."""
    lines = [
        line for block in blocks(path) if block.info in SHELL for line in block.text.splitlines()
    ]
    lines += re.findall(r"^ {4}(?! )(.*)$", prose(path), re.M)
    lines += [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", prose(path))]
    for line in lines:
        line = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
        if re.match(r"(flywheel|make) -*[a-z]", line):
            yield shlex.split(line, comments=True)


# --- README -------------------------------------------------------------------------------------


def test_readme_fits_in_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_readme_names_both_verbs_and_keeps_a_place_for_what_the_demo_printed() -> None:
    said = list(commands(ROOT / "README.md"))
    assert ["make", "demo"] in said and ["make", "test"] in said
    text = (ROOT / "README.md").read_text()
    assert re.search(r"^## What the demo printed\n(.*\n)*?```\n", text, re.M)


# --- commands -----------------------------------------------------------------------------------


@each_document
def test_documented_commands_exist_with_their_options(path: Path) -> None:
    for verb, *words in commands(path):
        if verb == "make":
            assert set(words) <= make_targets(), f"make {words}"
        else:
            check_usage(words)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def check_usage(words: list[str]) -> None:
    """Takes the words apart as the command would; what they name need not be there."""
    context = click.Context(flywheel)
    if words[0].startswith("-"):
        assert words[0] in {one for option in flywheel.get_params(context) for one in option.opts}
        return
    names = [word for word in words if not word.startswith("-")]
    if len(names) > 3 and set(names) <= set(flywheel.list_commands(context)):
        return  # a list of commands
    command = flywheel.get_command(context, words[0])
    assert command is not None, f"no command flywheel {words[0]}"
    values, left, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    assert not left, f"flywheel {' '.join(words)}: {left} is nothing"
    needed = [one.name for one in command.get_params(context) if isinstance(one, click.Argument)]
    given = [name for name in needed if name and values.get(name) is not None]
    assert len(words) == 1 or not needed or given, f"flywheel {' '.join(words)}: says not of what"


def test_every_command_is_in_the_documents_and_has_a_module() -> None:
    said = {words[1] for path in DOCS for words in commands(path) if words[0] == "flywheel"}
    context = click.Context(flywheel)
    for name in flywheel.list_commands(context):
        assert flywheel.get_command(context, name) is not None
        assert name in said | {"demo", "serve", "promote", "grade"}, f"flywheel {name} is nowhere"


def cli(home: Path, *words: str, at: Path = ROOT, root: Path = ROOT) -> tuple[int, str, str]:
    """Runs `flywheel …` in a process of its own, with `home`; returns code, output, errors."""
    ours = ("FLYWHEEL_", "PREFECT_", "MLFLOW_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        cwd=at,
        env={**kept, "FLYWHEEL_HOME": str(home), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_cheap_documented_commands_run(tmp_path: Path) -> None:
    home, inbox = tmp_path / "home", tmp_path / "inbox"
    code, out, _ = cli(home, "--help")
    assert code == 0 and "turn" in out
    code, out, _ = cli(home, "init", str(inbox), "--json")
    assert code == 0 and json.loads(out)["files"] == [
        "README.md",
        "environment.py",
        "flywheel.toml",
    ]
    assert cli(home, "init", str(inbox))[0] == 2
    project = load_project(inbox)
    assert project.name == "inbox"
    assert load_environment(project.environment.path, inbox).name == "inbox"

    logs = tmp_path / "logs"
    logs.mkdir()
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    (logs / "rows.jsonl").write_text(json.dumps(row) + "\n{half a row\n")
    code, out, _ = cli(home, "import", str(logs), "--project", str(inbox), "--json")
    found = json.loads(out)
    assert code == 0 and (found["traces"], found["quarantined"]) == (1, 1)
    code, out, errors = cli(home, "import", str(logs), "--project", str(inbox))
    assert code == 0 and "rows.jsonl:2" in errors

    code, out, _ = cli(home, "status", "--json")
    assert code == 0 and json.loads(out)["waiting_segments"] == 0
    code, out, errors = cli(home, "lineage", "nothing-v7", "--json")
    assert code == 2 and json.loads(out)["exit_code"] == 2 and "flywheel status" in errors
    code, _, errors = cli(home, "rollback", str(inbox))
    assert code == 2 and "no previous deployment" in errors
    code, _, errors = cli(home, "turn", str(tmp_path / "nowhere"))
    assert code == 2 and "no flywheel.toml" in errors


# --- links and names ----------------------------------------------------------------------------


@each_document
def test_relative_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{named(path)}: no {target}"
        if anchor:
            assert anchor in anchors(there), f"{named(path)}: no heading {target}"


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each_document
def test_named_files_are_there(path: Path) -> None:
    for name in re.findall(r"`([\w./-]+\.(?:py|toml|sh|txt|in|jinja))`", prose(path)):
        if name.split("/")[0] in FOLDERS and "/" in name:
            assert (ROOT / name).exists(), f"{named(path)}: no {name}"


@each_document
def test_named_code_is_there(path: Path) -> None:
    for name in re.findall(r"`([\w/]+\.py:[\w.]+)`", prose(path)):
        file, _, attribute = name.partition(":")
        if file.split("/")[0] in FOLDERS and "/" in file:
            assert attribute in names_in(ROOT / file), f"{named(path)}: no {name}"
    for name in re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`", prose(path)):
        assert name in DATA or is_module(name.split(".")), f"{named(path)}: no {name}"


def is_module(parts: list[str]) -> bool:
    """Whether `a.b` is a folder or a module, or something that the module `a` defines."""
    at = ROOT.joinpath(*parts)
    if at.is_dir() or at.with_suffix(".py").is_file():
        return True
    module = at.parent.with_suffix(".py")
    module = module if module.is_file() else at.parent / "__init__.py"
    return module.is_file() and parts[-1] in names_in(module)


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a file defines: `name`, and `Class.name` with what its bases in the file have."""
    assert path.is_file(), path
    return frozenset(defined(ast.parse(path.read_text()).body, ""))


def defined(body: list[ast.stmt], before: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield before + node.name
        if isinstance(node, ast.ClassDef):
            yield from defined(node.body, f"{node.name}.")
        elif isinstance(node, ast.Assign):
            yield from (before + to.id for to in node.targets if isinstance(to, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield before + node.target.id


def test_path_follows_the_trace_with_many_names() -> None:
    named_there = set(re.findall(r"`([\w/]+\.py:[\w.]+)`", prose(ROOT / "docs/path.md")))
    assert len(named_there) > 80
    assert {name.split("/")[0] for name in named_there} == set(PACKAGES) - {"app"}


def test_every_decision_is_in_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}
    said = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text()))
    assert said == pages


def test_operating_quotes_messages_that_the_code_says() -> None:
    source = " ".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text())
        for top in PACKAGES
        for path in sorted((ROOT / top).rglob("*.py"))
    )
    table = (ROOT / "docs/operating.md").read_text().partition("## What a message means")[2]
    quoted = re.findall(r"^\| `([^`]+)`", table, re.M)
    assert len(quoted) > 15
    for message in quoted:
        for piece in re.split(r"…|[A-Z]{4,}(?::LINE)?", message):
            words = piece.strip(" :;,")
            # "data gate:" is put together from the gate's name.
            words = words if not words.endswith("gate") else words.split()[0]
            assert words in source, f"nothing says {words!r}"


# --- the examples of extending.md ---------------------------------------------------------------

EXTENDING = ROOT / "docs/extending.md"


def examples() -> dict[str, str]:
    """File -> its text, or the lines to be added to it."""
    found: dict[str, str] = {}
    for block in blocks(EXTENDING):
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
from flywheel.project import CurateSection
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
    for file, text in examples().items():
        if file.endswith(".py") and not file.endswith("__init__.py"):
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
