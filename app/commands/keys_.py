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
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent=concurrent,
        by=by,
        until=None if expires is None else time.time_ns() + expires,
    )
    _show(name, key_file.add(home, key), as_json)


@command.command("rotate")
@click.argument("name")
@click.option("--grace", type=DURATION, default="24h", show_default=True,
              help="How long the old secret still holds; 0s ends it at once.")  # fmt: skip
@_json
def rotate(name: str, grace: int, as_json: bool) -> None:
    """Issue a new secret of the key NAME and print it; the old one ends after a while."""
    home = start().at()
    from serving import key_file

    _show(name, key_file.rotate(home, name, grace), as_json)


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
    secrets = sum(one.until is None or one.until > now for one in key.issued)
    return {
        **said,
        "scopes": sorted(key.scopes),
        "projects": None if key.projects is None else sorted(key.projects),
        "state": key.state(now),
        "secrets": secrets,
    }


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
    held = sum(one.until is None or one.until > now for one in key.issued)
    rotating = f"; {held} secrets hold while it is rotated" if held > 1 else ""
    return (
        f"{key.name:<20} {key.state(now):<8} {', '.join(sorted(key.scopes))}; {projects}; "
        f"{', '.join(limits) or 'no limits'}{ends}{rotating}"
    )


def _day(moment: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment / 1e9))


def _show(name: str, secret: str, as_json: bool) -> None:
    if as_json:
        echo_json({"name": name, "key": secret})
        return
    echo(secret)
    echo(f"{name}: the line above is its key, shown this once", err=True)
