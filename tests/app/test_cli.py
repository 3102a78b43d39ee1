"""The command line's own promises: light to start, one object for scripts, honest exit codes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import app.cli
from app.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {
    "torch", "prefect", "mlflow", "duckdb", "transformers", "polars", "great_expectations",
    "openai", "peft", "sklearn", "scipy", "uvicorn", "httpx",
}  # fmt: skip
Flywheel = Callable[..., Any]


def imported_by(*arguments: str) -> set[str]:
    """Top modules that the command line has imported when it ends."""
    code = (
        "import sys\n"
        f"sys.argv = ['flywheel', *{list(arguments)!r}]\n"
        "from app.cli import main\n"
        "try:\n    main()\nfinally:\n    print('\\n@', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    return {name.partition(".")[0] for name in done.stdout.rpartition("@")[2].split()}


@pytest.mark.parametrize("arguments", [("--help",), ("no-such-command",), ("turn", "--help")])
def test_help_and_mistakes_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    loaded = imported_by(*arguments)
    assert "app" in loaded
    assert not loaded & HEAVY


def test_help_names_every_command_and_every_command_has_help_and_json(flywheel: Flywheel) -> None:
    text = flywheel("--help").out
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", text, re.M), name
    group = app.cli.flywheel
    assert isinstance(group, click.Group)
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command and command.help, name
        parts = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for part in parts:
            assert part.help, (name, part.name)
            assert "as_json" in [parameter.name for parameter in part.params], (name, part.name)


def test_every_command_has_its_file_and_every_file_its_command() -> None:
    files = {path.stem.removesuffix("_") for path in (ROOT / "app" / "commands").glob("[a-z]*_.py")}
    assert files == set(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trun",), "did you mean 'turn'"),
        (("status", "--nonsense"), "--nonsense"),
        (("lineage",), "a deployment (inbox-v1), decision"),
        (("lineage", "nobody"), "nobody"),
        (("turn", "nowhere"), "no flywheel.toml at nowhere"),
        (("serve", "nowhere"), "no flywheel.toml at nowhere"),
        (("rollback", "nowhere"), "no flywheel.toml at nowhere"),
        (("route",), f"no flywheel.toml at {os.sep}"),
        (("import", "nowhere"), "nowhere"),
        (("import", ".", "--max-line", "0"), "--max-line"),
        (("import", ".", "--project", "nowhere"), "no flywheel.toml at nowhere"),
        (("turn", "no\udcff"), "no\\udcff"),
        (("init", "9"), "must start with a letter"),
        (("release", ".", "--version", "1", "--canary", "-1"), "share is from 0"),
        (("release", ".", "--version", "1", "--canary", "1"), "share is from 0"),
        (("release", ".", "--version", "1", "--canary", "nan"), "share is from 0"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_code_2(
    flywheel: Flywheel, arguments: tuple[str, ...], says: str
) -> None:
    said = flywheel(*arguments, "--json")
    assert (said.code, said.object()["exit_code"]) == (2, 2), said
    assert says in said.object()["error"] and says not in said.err, "a script is told once"
    plain = flywheel(*arguments)
    assert plain.code == 2 and plain.out == ""
    assert plain.err.startswith("flywheel: ") and says in plain.err
    assert "Traceback" not in plain.err


def test_an_unknown_key_is_told_with_the_nearest_right_one(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    (tmp_path / "flywheel.toml").write_text(
        'name = "x"\n[model]\nbase = "b"\n[environment]\npath = "e.py:E"\n[train]\nepoch = 3\n'
    )
    said = flywheel("turn", tmp_path, "--json")
    assert said.code == 2
    assert "train.epoch" in said.object()["error"] and "'epochs'" in said.object()["error"]


@pytest.mark.parametrize(
    ("section", "line"), [("train", "learning_rate = inf"), ("serving", "port = -1")]
)
def test_a_value_out_of_its_range_is_named(
    flywheel: Flywheel, tmp_path: Path, section: str, line: str
) -> None:
    (tmp_path / "flywheel.toml").write_text(
        f'name = "x"\n[model]\nbase = "b"\n[environment]\npath = "e.py:E"\n[{section}]\n{line}\n'
    )
    said = flywheel("turn", tmp_path, "--json")
    assert said.code == 2
    assert f"{section}.{line.split()[0]}: Input should be" in said.object()["error"]


def test_a_rule_that_is_none_is_told_before_the_turn_begins(
    flywheel: Flywheel, tmp_path: Path
) -> None:
    (tmp_path / "environment.py").write_text(
        "from environments.define import Environment\nclass E(Environment):\n    pass\n"
    )
    (tmp_path / "flywheel.toml").write_text(
        'name = "x"\n[model]\nbase = "no-such-model"\n[environment]\npath = "environment.py:E"\n'
        '[curate]\nrules = [{name = "lenght", max_tokens = 9}]\n'
    )
    said = flywheel("turn", tmp_path, "--json")
    assert said.code == 2 and "'lenght'" in said.object()["error"]


@pytest.mark.parametrize("threads", ["many", "0"])
def test_a_setting_that_does_not_fit_is_named(flywheel: Flywheel, threads: str) -> None:
    said = flywheel("status", "--json", FLYWHEEL_THREADS=threads)
    assert said.code == 2
    assert "FLYWHEEL_THREADS" in said.object()["error"]


@pytest.mark.parametrize("what", ["a file", "below a file", "read only"])
def test_a_home_that_cannot_be_written_is_told(
    flywheel: Flywheel, tmp_path: Path, what: str
) -> None:
    home = tmp_path / "place"
    if what == "read only":
        if os.geteuid() == 0:
            pytest.skip("root may write everywhere")
        home.mkdir(mode=0o500)
    else:
        home.write_text("here already")
        home = home / "home" if what == "below a file" else home
    said = flywheel("status", "--json", home=home, cwd=tmp_path)
    assert said.code == 2, said
    assert str(home) in said.object()["error"] and "FLYWHEEL_HOME" in said.object()["error"]


def test_what_is_no_error_of_ours_is_one_object_too(flywheel: Flywheel, tmp_path: Path) -> None:
    """A bug keeps its traceback for people, and scripts still read an object."""
    place = tmp_path / "broken"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import flywheel.home, sys\n"
        "print('noise')\n"
        "def broken(self):\n    raise RuntimeError('a bug')\n"
        "flywheel.home.Home.inbox = property(broken)\n"
    )
    said = flywheel("status", "--json", PYTHONPATH=f"{place}:{ROOT}")
    assert said.code == 1
    assert json.loads(said.out.splitlines()[-1]) == {
        "error": "RuntimeError: a bug",
        "exit_code": 1,
    }
    assert "Traceback" in said.err


def test_what_others_print_is_not_in_the_object(flywheel: Flywheel, tmp_path: Path) -> None:
    """An environment's file and the programs that it starts; a name that moves a terminal."""
    (tmp_path / "loud.py").write_text(
        "import os, subprocess\n"
        "print('noise')\nos.write(1, b'noise')\nsubprocess.run(['echo', 'noise'])\n"
        "raise ValueError('\\x1b]0;title\\x07 \\u202e')\n"
    )
    said = flywheel("eval", f"{tmp_path}/loud.py:Loud", "--model", "http://127.0.0.1:9", "--json")
    assert "ValueError" in said.object()["error"] and "noise" not in said.out
    assert said.err.count("noise") == 3
    told = flywheel("eval", f"{tmp_path}/loud.py:Loud", "--model", "http://127.0.0.1:9").err
    assert "\x1b" not in told
    assert "\u27e8U+001B\u27e9]0;title\u27e8U+0007\u27e9 \u27e8U+202E" in told


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m app.cli status | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=ROOT,
        env={**os.environ, "FLYWHEEL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_of_many_links_of_a_kind_the_first_are_shown_and_the_others_counted() -> None:
    from app.commands.lineage_ import SHOWN, lines
    from storage.lineage import Link

    chain = [Link(kind="run", id="r")]
    chain += [Link(kind="problem", id=f"p{n}") for n in range(SHOWN + 3)]
    said = list(lines([*chain, Link(kind="trace", id="t")]))
    assert len(said) == SHOWN + 3
    assert said[-2].split() == ["problem", "and", "3", "more:", "--json", "has", "all"]
