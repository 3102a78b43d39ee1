"""`flywheel keys`: who may use the gateway; issued, listed, rotated, revoked while it runs."""

import getpass
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.cli import echo, echo_json
from app.durations import DURATION
from app.start import start

if TYPE_CHECKING:
    from flywheel.home import Home
    from serving.key_file import Key

_json = click.option("--json", "as_json", is_flag=True, help="Print one object for scripts.")
_COUNT = click.IntRange(min=1)


@click.group("keys")
def command() -> None:
    """Keys of the gateway. A change holds from the next request on, without a restart."""


@command.command("add")
@click.argument("name")
@click.option("--project", "projects", multiple=True, help="It may use; may repeat. Without: all.")
@click.option("--scope", "scopes", multiple=True,
              type=click.Choice(["infer", "feedback", "ingest", "admin"]),
              default=("infer", "feedback"), show_default=True,
              help="What it may do; may repeat.")  # fmt: skip
@click.option("--tenant", help="Whose data it sends. [default: as each request says]")
@click.option("--requests", type=_COUNT, help="A minute, at most.")
@click.option("--tokens", type=_COUNT, help="A minute, at most; prompts and answers together.")
@click.option("--concurrent", type=_COUNT, help="Requests in work at one time, at most.")
@click.option("--expires", type=DURATION, help="After this long: 90d, 12h.")
@click.option("--by", default=getpass.getuser, show_default="you", help="Who makes it.")
@_json
def add(
    name: str,
    projects: Sequence[str],
    scopes: Sequence[Any],
    tenant: str | None,
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    expires: int | None,
    by: str,
    as_json: bool,
) -> None:
    """Issue a key under NAME and print it: once, since only its hash is kept."""
    home = start().at()
    from serving import key_file

    key = key_file.Key(
        name=name,
        scopes=frozenset(scopes),
        projects=frozenset(projects) or None,
        tenant=tenant,
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent=concurrent,
        by=by,
        until=None if expires is None else time.time_ns() + expires,
    )
    _show(name, key_file.add(home, key), as_json)
    _warn_of_unknown(home, projects)


@command.command("rotate")
@click.argument("name")
@click.option("--grace", type=DURATION, default="24h", show_default=True,
              help="How long the old secret still holds; 0s ends it at once.")  # fmt: skip
@_json
def rotate(name: str, grace: int, as_json: bool) -> None:
    """Issue a new secret of the key NAME and print it; the old one ends after a while."""
    home = start().at()
    from serving import key_file

    secret, now = key_file.rotate(home, name, grace), time.time_ns()
    key = (key_file.read(home) or {})[name]
    _show(name, secret, as_json, old_until=max(_ends(key, now), default=now))


@command.command("revoke")
@click.argument("name")
@_json
def revoke(name: str, as_json: bool) -> None:
    """End the key NAME at once. Its name stays in accounts and is not given again."""
    home = start().at()
    from serving import key_file

    key_file.revoke(home, name)
    if as_json:
        echo_json({"name": name, "state": "revoked"})
    else:
        echo(f"{name} is revoked")


@command.command("list")
@_json
def list_(as_json: bool) -> None:
    """The keys that were issued here: what each may do, and until when."""
    home = start().at()
    from serving import key_file

    keys = key_file.read(home)
    now = time.time_ns()
    if as_json:
        echo_json({"keys": [described(key, now) for key in (keys or {}).values()]})
    elif not keys:
        echo("no key was issued: flywheel keys add NAME")
    else:
        for key in keys.values():
            echo(_line(key, now))


def described(key: "Key", now: int) -> dict[str, Any]:
    """Without its hashes, which are nobody's to read."""
    said = msgspec.to_builtins(key)
    said.pop("issued", None)
    ending = _ends(key, now)
    return {
        **said,
        "scopes": sorted(key.scopes),
        "projects": None if key.projects is None else sorted(key.projects),
        "state": key.state(now),
        "secrets": sum(one.until is None or one.until > now for one in key.issued),
        "old_until": max(ending, default=None),
    }


def _ends(key: "Key", now: int) -> list[int]:
    """When those of its secrets end that a rotation left for a while."""
    return [one.until for one in key.issued if one.until is not None and one.until > now]


def _line(key: "Key", now: int) -> str:
    projects = "all projects" if key.projects is None else ", ".join(sorted(key.projects))
    limits = [
        f"{count:,} {what}"
        for count, what in (
            (key.requests_per_minute, "requests a minute"),
            (key.tokens_per_minute, "tokens a minute"),
            (key.concurrent, "at one time"),
        )
        if count is not None
    ]
    ends = "" if key.until is None else f"; until {_day(key.until)}"
    ending = _ends(key, now)
    old = f"{len(ending)} old secrets hold" if len(ending) > 1 else "an old secret holds"
    rotating = f"; {old} until {_day(max(ending))}" if ending else ""
    return (
        f"{key.name:<20} {key.state(now):<8} {', '.join(sorted(key.scopes))}; {projects}; "
        f"{', '.join(limits) or 'no limits'}{ends}{rotating}"
    )


def _day(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment / 1e9))


def _warn_of_unknown(home: "Home", projects: Sequence[str]) -> None:
    """A key may come before its project's first start, so it is issued all the same."""
    from app.named import without_traces as known

    if unknown := sorted({*projects}.difference(there := known(home))):
        echo(
            f"no project {', '.join(unknown)} is known in this home yet (there is "
            f"{', '.join(there) or 'none'}): the key lets nobody in there until one of that name "
            "is served",
            err=True,
        )


def _show(name: str, secret: str, as_json: bool, *, old_until: int | None = None) -> None:
    """`old_until`: when the secret before this one ends. None = there is none."""
    if as_json:
        ends = {} if old_until is None else {"old_until": old_until}
        echo_json({"name": name, "key": secret, **ends})
        return
    echo(secret)
    over = old_until is not None and old_until <= time.time_ns()
    old = "has ended" if over else f"holds until {_day(old_until or 0)}"
    rest = "" if old_until is None else f"; the old one {old}"
    echo(f"{name}: the line above is its key, shown this once{rest}", err=True)
