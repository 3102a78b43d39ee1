"""`flywheel privacy`: what is personal or secret in traces and files."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start

if TYPE_CHECKING:
    from storage.privacy.find import Policy
    from storage.privacy.scan import Scan


@click.group("privacy")
def command() -> None:
    """Personal data and secrets: where they are."""


@command.command("scan")
@click.argument("target", metavar="PROJECT|FILE")
@click.option("--kind", "kinds", multiple=True, help="Only these, by name. May repeat.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def scan(target: str, kinds: tuple[str, ...], as_json: bool) -> None:
    """Count what is personal or secret in PROJECT's recorded traces, or in FILE.

    PROJECT is its folder or its name; its [privacy] says what is no secret. FILE is a file or a
    folder of any format. Nothing is changed, and of what was found no more is shown than its form.
    """
    home = start(progress=True).at()
    from storage.privacy.scan import scan_path, scan_project

    name, policy = _project(target)
    if name is not None:
        found = scan_project(home, name, _only(policy, kinds))
    else:
        found = scan_path(Path(target), _only(policy, kinds))
    if as_json:
        echo_json({"project": name, "path": None if name else target, **msgspec.to_builtins(found)})
    else:
        show(found, "traces" if name else "rows")


def _project(target: str) -> "tuple[str | None, Policy]":
    """The project that it names, with what it looks for; None = it is a path.

    Raises:
        UsageError: it is neither.
    """
    home = start().at()
    from app.named import projects
    from flywheel.errors import UsageError
    from flywheel.known import known
    from flywheel.project import load_project
    from storage.privacy.find import EVERYTHING, policy_of

    path = Path(target)
    folder = path if (path / "flywheel.toml").is_file() else known(home).get(target)
    if folder is not None and (folder / "flywheel.toml").is_file():
        project = load_project(folder)
        return project.name, policy_of(project.privacy)
    if path.exists():
        return None, EVERYTHING
    if target not in (there := projects(home)):
        raise UsageError(
            f"{target} is no file, and no project here; there is {', '.join(there) or 'none'}"
        )
    return target, EVERYTHING


def _only(policy: "Policy", kinds: tuple[str, ...]) -> "Policy":
    from flywheel.errors import UsageError
    from storage.privacy.find import KINDS

    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise UsageError(f"no kind {', '.join(unknown)}; there is {', '.join(KINDS)}")
    chosen = tuple(kind for kind in KINDS if kind in kinds)
    return msgspec.structs.replace(policy, kinds=chosen) if kinds else policy


def show(found: "Scan", what: str) -> None:
    share = f" ({found.with_any / found.looked_at:.1%})" if found.looked_at else ""
    echo(f"{found.looked_at:,} {what} looked at, {found.with_any:,}{share} hold something")
    if found.unreadable:
        echo(f"{found.unreadable:,} of them could not be read whole")
    if not found.findings:
        return
    echo(f"{'kind':<12}{'found':>9}{what:>9}  {'source':<24}  for example")
    for one in found.findings:
        echo(
            f"{one.kind:<12}{one.found:>9,}{one.within:>9,}  {one.source[-24:]:<24}  "
            f"{'; '.join(one.examples)}"
        )
