"""`flywheel release`: a version answers a share of the requests until its test is over."""

import getpass
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.cli import echo, echo_json
from app.start import start, turnable

if TYPE_CHECKING:
    from serving.release import Standing


class Share(click.ParamType[float]):
    """`10%` or `0.1`."""

    name = "share"

    def convert(self, value: Any, param: Any, context: Any) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is no share: write 10% or 0.1", param, context)


@click.command("release")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option("--version", help="Of the registered model; to end a release it may be left out.")
@click.option("--canary", type=Share(), help="Share of the requests that it answers: 10%.")
@click.option("--shadow", type=Share(), help="Share whose copies it is asked, unseen: 10%.")
@click.option("--end", is_flag=True, help="Take out the version that answers a share, or is asked.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--reason", default="", help="Why; it stands in the ledger.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path,
    version: str | None,
    canary: float | None,
    shadow: float | None,
    end: bool,
    by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Let a version of PROJECT answer a share of the requests, and see how it does.

    It passes the serving gate first. After each grading (`flywheel grade`, hourly where deployed)
    it is promoted, rolled back, or goes on; a broken guard rail ends it within seconds. Without
    --canary, --shadow and --end: how the release stands. Exit code 3: the gate refused.
    """
    if (canary is not None) + (shadow is not None) + end > 1:
        raise click.UsageError("--canary and --shadow begin a release, --end ends it: take one")
    if canary is None and shadow is None and not end:
        _show(project, as_json)
        return
    given = (canary if shadow is None else shadow) or 0.0
    found = _change(project, version, given, shadow is not None, by, reason)
    if as_json:
        echo_json(found)
        return
    share = f"{found['challenger']} answers {found['share']:.1%}, {found['champion']} the rest"
    echo(share if found["challenger"] else f"{found['champion']} answers all requests")
    if found["shadow"]:
        echo(f"{found['shadow']} is asked copies of {found['shadow_share']:.1%}, unseen")


def _change(
    project: Path, version: str | None, share: float, shadow: bool, by: str, reason: str
) -> dict[str, Any]:
    """`share` 0 ends it."""
    from serving.canary import must_be_share

    if not shadow:
        must_be_share(share)
    elif not 0 < share <= 1:
        raise click.UsageError(f"a shadow's share is above 0 and at most 1, not {share:g}")
    if version is None and share:
        raise click.UsageError("--version says which one shall answer that share")
    folder = turnable(project, start(progress=True))
    from flows.release import release

    found: Any = release(folder, version, share, by, reason, shadow)
    return dict(found)


def _show(folder: Path, as_json: bool) -> None:
    import msgspec

    from flywheel.project import load_project
    from serving.release import shadow_standing, standing

    home, project = start().at(), load_project(folder)
    found = standing(home, project.name, project.release)
    shadow = shadow_standing(home, project.name, project.release)
    if as_json:
        stands = {"release": found and found[0], "shadow": shadow}
        echo_json({"project": project.name, **msgspec.to_builtins(stands)})
        return
    if shadow is not None:
        echo(f"{shadow.shadow} is asked copies of {shadow.share:.1%}, unseen: {shadow.reason}")
    for line in told(found[0]) if found else ():
        echo(line)
    if found is None and shadow is None:
        echo(
            f"no version of {project.name} answers a share: "
            f"flywheel release {folder} --version N --canary 10%"
        )


def told(stands: "Standing") -> Iterator[str]:
    hours = "" if stands.hours is None else f", for {stands.hours:.1f} hours"
    yield f"{stands.challenger} answers {stands.share:.1%} beside {stands.champion}{hours}"
    yield f"{stands.says}: {stands.reason}"
    if any(stands.ungraded):
        its, own = stands.ungraded
        yield f"not graded yet: {own} of its traces, {its} of {stands.champion}'s"
    for rail in stands.rails:
        mine, its = rail["challenger"], rail["champion"]
        yield (
            f"  {rail['rail']:<9} {mine[0]} of {mine[1]}, {its[0]} of {its[1]} of the champion's; "
            f"allowed: {rail['allowed']}; {rail['evidence']:.0%} of the way to a rollback"
        )
