"""`flywheel init`: a working project, to be changed."""

import re
import shlex
from pathlib import Path

import click

from app.cli import echo, echo_json
from flywheel.errors import UsageError


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(folder: Path, as_json: bool) -> None:
    """Write a working project into FOLDER: flywheel.toml, environment.py, README.md."""
    written = write_project(folder)
    if as_json:
        echo_json({"folder": str(folder), "files": written})
    else:
        echo(f"wrote {', '.join(written)} into {folder}: flywheel serve {shlex.quote(str(folder))}")


def write_project(folder: Path) -> list[str]:
    """The template's files with the folder's name in them; nothing is overwritten."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
        raise UsageError(f"{folder.name!r} makes no project name: it must start with a letter")
    template = Path(__file__).resolve().parents[1] / "template"
    files = sorted(path for path in template.iterdir() if path.is_file())
    there = [path.name for path in files if (folder / path.name).exists()]
    if there:
        raise UsageError(f"{folder} has {', '.join(there)} already: nothing was written")
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        text = path.read_text().replace("{name}", name).replace("{{", "{").replace("}}", "}")
        (folder / path.name).write_text(text)
    return [path.name for path in files]
