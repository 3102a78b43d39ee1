"""`flywheel route`: who answers for a project, who gets copies, and who stands in."""

import contextlib
import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.start import start, turnable
from flywheel.errors import Busy, UsageError

if TYPE_CHECKING:
    from flywheel.home import Home
    from flywheel.project import Project
    from flywheel.settings import Settings
    from serving.routing import ProjectRoute


@click.command("route")
@click.argument("project", type=click.Path(path_type=Path), default=".")
@click.option(
    "--shadow",
    metavar="WHO:SHARE",
    help="Copy a share of the conversations to a version or provider: 3:10%; off ends it.",
)
@click.option(
    "--fallback",
    "fallbacks",
    multiple=True,
    help="Who answers where the champion fails: previous, base or a provider; again for the next."
    " off: whom the project's file names.",
)
@click.option("--show", is_flag=True, help="Only show how it stands; so does no option.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who asks.")
@click.option("--reason", default="", help="Why; it stands in the ledger.")
@click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
def command(
    project: Path,
    shadow: str | None,
    fallbacks: tuple[str, ...],
    show: bool,
    by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Show or change who answers PROJECT's requests beside its champion.

    It takes effect with the next request and stands in the ledger. A version passes the serving
    gate first; exit code 3: it was refused.
    """
    if show and (shadow or fallbacks):
        raise click.UsageError("--show changes nothing: leave out --shadow and --fallback")
    settings = start(progress=True)
    from flywheel.project import load_project

    home, found = settings.at(), load_project(project)
    if shadow is not None:
        _shadow(settings, project, found, shadow, by, reason)
    if fallbacks:
        _fallbacks(home, found, fallbacks, by, reason)
    route = _route(home, found)
    if as_json:
        echo_json(msgspec.to_builtins(route))
    else:
        _tell(route, found)


def _shadow(
    settings: "Settings", folder: Path, project: "Project", said: str, by: str, why: str
) -> None:
    from serving.presence import running_engine
    from serving.rerouting import end_shadow, set_shadow
    from serving.routing import external_deployment

    home = settings.at()
    if said == "off":
        end_shadow(home, project.name, engine=running_engine(home), by=by, reason=why)
        _committed(home)
        return
    who, share = _parted(said)
    if who in project.providers:
        route = _route(home, project)
        provider = external_deployment(project.name, who, route.base_model)
        engine = running_engine(home)
        set_shadow(home, provider, share, engine=engine, verify=dict, by=by, reason=why)
        _committed(home)
        return
    _must_be_there(home, project, who)
    path = turnable(folder, settings)
    from flows.release import release

    release(path, who, share, by, why, shadow=True)


def _must_be_there(home: "Home", project: "Project", who: str) -> None:
    from serving.registry import Registry
    from serving.registry_versions import version_of

    try:
        version_of(Registry(home), project.name, who)
    except UsageError as error:
        providers = ", ".join(project.providers) or "none"
        raise UsageError(f"--shadow {who}: {error}; providers: {providers}") from error


def _parted(said: str) -> tuple[str, float]:
    who, colon, share = said.rpartition(":")
    try:
        part = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        part = 0.0
    if not (who and colon and 0 < part <= 1):
        raise UsageError(f"--shadow {said}: say a version or provider and a share, as in 3:10%")
    return who, part


def _fallbacks(home: "Home", project: "Project", names: tuple[str, ...], by: str, why: str) -> None:
    from serving.rerouting import set_fallbacks

    named, known = () if names == ("off",) else names, {"previous", "base", *project.providers}
    for name in named:
        if name not in known:
            raise UsageError(f"--fallback {name}: there is {', '.join(sorted(known))}")
    set_fallbacks(home, project.name, named, by=by, reason=why)
    _committed(home)


def _route(home: "Home", project: "Project") -> "ProjectRoute":
    from serving.routing import read

    route = read(home).projects.get(project.name)
    if route is None:
        raise UsageError(f"nothing serves {project.name} yet: `flywheel serve` begins")
    return route


def _tell(route: "ProjectRoute", project: "Project") -> None:
    from serving.fallbacks import fallback, in_order

    rest = 1 - route.share
    echo(f"{route.champion.name} answers {rest:.1%} of the requests{_where(route.champion)}")
    if route.challenger is not None and route.share:
        echo(f"{route.challenger.name} answers {route.share:.1%}: its canary")
    if route.shadow is not None:
        echo(f"{route.shadow.name} gets a copy of {route.shadow_share:.1%} of the conversations")
    ways = in_order(route.champion, route, project.serving)[1:]
    names = ", then ".join(f"{one.name}{_where(one)}" for one in ways)
    echo(f"where it fails: {names}" if names else "where it fails nobody stands in for it")
    named = route.fallbacks or project.serving.fallbacks
    if "previous" in named and fallback("previous", route) is None:
        why = "it was rolled back" if route.rolled_back else "nothing was replaced yet"
        echo(f"not previous, which is named: {why}")
    if route.previous is not None:
        echo(f"before it: {route.previous.name}; `flywheel rollback` puts it back")


def _where(one: Any) -> str:
    return f" (the provider {one.provider})" if one.provider else ""


def _committed(home: "Home") -> None:
    from storage.committer import commit

    with contextlib.suppress(Busy):  # it waits in the inbox then
        commit(home, wait_s=2)
