"""Documents taken apart for their tests: code blocks, prose, commands; and the command, run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("app", "environments", "flows", "flywheel", "serving", "storage", "tasks", "trainer")

SHELL = ("", "sh", "console")
"""Fences whose lines are commands."""


class Block(NamedTuple):
    info: str
    """What stands behind the opening fence."""
    text: str


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
