"""Harbor's task folders: task.toml, instruction.md, tests/, and perhaps environment/, solution/.

The answer is {"tests", "environment", "solution", "image", "verifier"}: files by their relative
path (text as it is, other bytes as {"base64": …}), the ready image where task.toml names one, and
its [verifier]. So a problem carries all that a grader needs. No link is followed.
"""

import base64
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments.tasksets.contract import Drawn, Given, Options, Reader, Source
from environments.tasksets.fields import problem
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import SIDES, storable
from flywheel.errors import BadRecord, ProjectError

CONFIG = "task.toml"
DEPTH = 6
"""Folders down that tasks are looked for."""
MAX_FILES = 500
MAX_BYTES = 4 << 20
"""Of a task's files together."""


def read(source: Source) -> Drawn:
    found = tasks(source.path)
    if not found:
        raise ProjectError(f"no task folder at {source.path}: one has a {CONFIG}")
    for folder in found:
        try:
            yield storable(_fit(folder, source))
        except BadRecord as bad:
            where = folder / bad.field if bad.field else folder
            yield BadRecord(bad.reason, path=str(where))


def tasks(path: Path) -> list[Path]:
    """Task folders, by name; hidden folders and links are not entered."""
    if (path / CONFIG).is_file():
        return [path]
    return sorted(_below(path, DEPTH))


def _below(path: Path, depth: int) -> Iterator[Path]:
    for one in path.iterdir() if path.is_dir() else ():
        if one.name.startswith(".") or one.is_symlink() or not one.is_dir():
            continue
        if (one / CONFIG).is_file():
            yield one
        elif depth > 1:
            yield from _below(one, depth - 1)


def _fit(folder: Path, source: Source) -> Given:
    try:
        config = tomllib.loads(_text(folder, CONFIG))
    except tomllib.TOMLDecodeError as error:
        raise BadRecord(f"is no TOML: {error}", field=CONFIG) from error
    if (folder / "steps").is_dir():
        raise BadRecord("has several steps: tasks of one step are read", field="steps")
    tests = _files(folder, "tests")
    if not tests.keys() & {"test.sh", "verifier.py"}:
        raise BadRecord("has no test.sh: it says what an answer is worth", field="tests")
    environment = _table(config, "environment")
    answer = {
        "tests": tests,
        "environment": _files(folder, "environment"),
        "solution": _files(folder, "solution"),
        "image": environment.get("docker_image"),
        "verifier": _table(config, "verifier"),
    }
    about = _table(config, "metadata")
    kind = about.get("category")
    return Given(
        problem(
            source,
            prompt_of(_instruction(folder), "instruction.md", source.options.system),
            answer,
            key=folder.name,
            slice=kind if isinstance(kind, str) else "",
            attributes={"id": folder.name, "metadata": _plain(about)},
        ),
        next((SIDES[one] for one in folder.parts[-2:-1] if one in SIDES), None),
    )


def _instruction(folder: Path) -> str:
    """Without the canary lines before it, which mark a file for those who crawl the web."""
    lines = _text(folder, "instruction.md").splitlines(keepends=True)
    while lines and lines[0].startswith(("<!--", "#")) and "canary" in lines[0].lower():
        lines.pop(0)
    return "".join(lines).strip()


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecord(f"cannot be read: {error}", field=name) from error


def _files(folder: Path, name: str) -> dict[str, Any]:
    root, size = folder / name, 0
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            raise BadRecord(f"{path.name} is a link: put the file itself there", field=name)
        if not path.is_file():
            continue
        size += path.stat().st_size
        if size > MAX_BYTES or len(found) >= MAX_FILES:
            reason = f"has over {MAX_FILES} files or {MAX_BYTES:,} bytes: leave large data out"
            raise BadRecord(reason, field=name)
        found[path.relative_to(root).as_posix()] = _content(path.read_bytes())
    return found


def _content(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _table(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise BadRecord(f"[{name}] is {type(found).__name__}, not a table", field=CONFIG)
    return {key: _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    """TOML's dates as text, so that a problem is JSON."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


def recognises(path: Path, _: Mapping[str, Any] | None) -> bool:
    return path.is_dir() and bool(tasks(path))


READER = Reader(Options, recognises, read)
