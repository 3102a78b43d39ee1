"""The documents say what is there: commands, targets, links and names of code."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from app.cli import flywheel
from environments.load import load_environment
from flywheel.project import load_project
from tests.reading_docs import PACKAGES, ROOT, cli, commands, prose

DOCS = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + [path for top in ("docs", "examples", "app/template") for path in (ROOT / top).rglob("*.md")]
)
FOLDERS = (*PACKAGES, "tests", "benchmarks", "examples", "scripts", "docs", "locks")
DATA = ("flywheel.toml", "flywheel.duckdb")
"""Files that look like names of a package."""


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_document = pytest.mark.parametrize("path", DOCS, ids=named)


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
    if isinstance(command, click.Group):
        inner = command.get_command(context, words[1]) if len(words) > 1 else None
        assert inner is not None or len(words) == 1, f"no command flywheel {' '.join(words[:2])}"
        if inner is None:
            return
        command, words = inner, words[1:]
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
    assert code == 0 and json.loads(out)["waiting"]["segments"] == 0
    code, out, errors = cli(home, "lineage", "nothing-v7", "--json")
    told = json.loads(out)
    assert code == 2 and told["exit_code"] == 2 and "flywheel status" in told["error"]
    assert "nothing-v7" not in errors  # a script is told once
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
def test_named_scripts_are_there_in_commands_too(path: Path) -> None:
    here = r"(?<![\w./-])((?:benchmarks|scripts|examples|tests)/[\w./-]+\.(?:py|sh))\b"
    for name in re.findall(here, path.read_text()):
        assert (ROOT / name).exists(), f"{named(path)}: no {name}"


def test_no_heading_of_training_is_empty() -> None:
    parts = re.split(r"^## (.*)$", (ROOT / "docs" / "training.md").read_text(), flags=re.M)[1:]
    empty = [title for title, text in zip(parts[::2], parts[1::2], strict=True) if not text.strip()]
    assert parts and not empty


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


def test_the_page_of_keys_is_what_the_project_file_has() -> None:
    said = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "keys.py"), "--check"], capture_output=True
    )
    assert said.returncode == 0, said.stderr.decode()


def test_every_key_of_the_project_file_says_what_it_means() -> None:
    page = (ROOT / "docs" / "project.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows and not [row for row in rows if row.endswith("|  |")]
