"""`flywheel import`: trace files of many formats come in."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from flywheel.home import Home
    from storage.belonging import Belonging

SHOWN = 5
"""Of lines that are quarantined for one reason, and of unmapped fields, so many are named."""


@click.command("import")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True,
    type=click.Path(exists=True, path_type=Path),
)  # fmt: skip
@click.option("--format", "form", default="auto", help="The files' format. [default: recognised]")
@click.option(
    "--project",
    type=click.Path(path_type=Path),
    help='Folder of the project that the traces are of. [default: the one here, else "default"]',
)
@click.option("--tenant", help="Whose data it is, where the files do not say.")
@click.option(
    "--consent",
    type=click.Choice(["granted", "denied"]),
    help="Whether it may be learnt from; what a file denies stays denied.",
)
@click.option("--expires", help="When it must be gone, as 2027-01-31; the earliest counts.")
@click.option(
    "--max-line", type=click.IntRange(1), default=64 * 2**20, help="Bytes a line may have."
)
@click.option("--runner", type=click.Choice(["processes", "dask", "ray"]),
              help="Read the files on many workers. [default: in this process]")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1024), help="How many. [default: a core each]")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    paths: tuple[Path, ...],
    form: str,
    project: Path | None,
    tenant: str | None,
    consent: Literal["granted", "denied"] | None,
    expires: str | None,
    max_line: int,
    runner: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Import each PATH, a file or a folder of them (plain, .gz, .zst), into the store.

    Rows that cannot be understood are quarantined and named; exit code 1 if none could.
    """
    settings = start(progress=True)
    from storage.belonging import Belonging, expiry
    from storage.importer import import_path

    name = project_name(project)
    told = Belonging(tenant, consent, None if expires is None else expiry(expires))
    if runner is None and workers is None:
        report = import_path(
            settings.at(), paths, project=name, format=form, max_line=max_line, told=told
        )
        found = {"project": name, **msgspec.to_builtins(report)}
    else:
        found = {"project": name, **_by_many(settings.at(), paths, name, form, max_line, told,
                                             runner or "processes", workers)}  # fmt: skip
    readable = found["readable"]
    if as_json:
        echo_json(found)
    else:
        show(found)
    sys.exit(0 if readable else 1)


def _by_many(
    home: "Home",
    paths: tuple[Path, ...],
    project: str,
    form: str,
    max_line: int,
    told: "Belonging",
    runner: str,
    workers: int | None,
) -> dict[str, Any]:
    from flows.server import start_prefect

    start_prefect(home)
    from flows.import_files import import_files

    return import_files(
        paths,
        project,
        form=form,
        max_line=max_line,
        told=told,
        runner=runner,
        workers=workers or os.cpu_count() or 1,
    )


def project_name(path: Path | None) -> str:
    """The name in the project's file; "default" where none is named and none is here.

    Raises:
        UsageError: a project was named, and there is none.
    """
    if path is None and not Path("flywheel.toml").is_file():
        return "default"
    from flywheel.project import load_project

    return load_project(path or Path()).name


def show(found: dict[str, object]) -> None:
    rejects: list[dict[str, Any]] = found.pop("rejects", [])  # type: ignore[assignment]
    alike: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for reject in rejects:
        why = tuple(reject.get(key) for key in ("path", "field", "reason", "kept"))
        alike.setdefault(why, []).append(reject)
    for (path, field, reason, kept), those in alike.items():
        lines = [str(one["line"]) for one in those if one.get("line") is not None]
        more = f" and {len(those) - SHOWN:,} more" if len(those) > SHOWN else ""
        where = ":".join([str(path), *([",".join(lines[:SHOWN]) + more] if lines else [])])
        at = f" {field}:" if field else ""
        echo(f"quarantined {where}:{at} {reason}{f' (kept in {kept})' if kept else ''}", err=True)
    unmapped: dict[str, int] = found.pop("unmapped_fields", {})  # type: ignore[assignment]
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{one} {count:,}" for one, count in value.items())
        echo(f"{name:<16} {value}")
    if unmapped:
        most = sorted(unmapped.items(), key=lambda one: (-one[1], one[0]))
        named = ", ".join(f"{field} {count:,}" for field, count in most[:SHOWN])
        more = f" and {len(most) - SHOWN:,} more: --json has all" if len(most) > SHOWN else ""
        echo(f"{'unmapped_fields':<16} {named}{more}")
