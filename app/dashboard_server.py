"""Streamlit as a process of its own: all its options are ours, and it leaves with its parent.

    python -m app.dashboard_server HOST PORT SECRETS...

`flywheel dashboard` starts it (`start`). No telemetry, no file watcher, nothing from a
.streamlit/config.toml that happens to lie around decides what is reachable.
"""

import contextlib
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from flywheel import children
from flywheel.errors import FlywheelError, UsageError
from flywheel.home import Home

PAGE = Path(__file__).resolve().parent / "dashboard.py"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_READY_S = 90.0

THEME = {
    "theme_light_primaryColor": "#0f6e6e",
    "theme_light_backgroundColor": "#ffffff",
    "theme_light_secondaryBackgroundColor": "#f2f5f6",
    "theme_light_textColor": "#14181b",
    "theme_dark_primaryColor": "#2c8c86",
    "theme_dark_backgroundColor": "#101518",
    "theme_dark_secondaryBackgroundColor": "#1a2126",
    "theme_dark_textColor": "#e8edef",
    "theme_baseFontSize": 15,
    "theme_headingFontSizes": ["1.7rem", "1.3rem", "1.1rem"],
    "theme_showWidgetBorder": True,
}


def options(host: str, port: int, secrets: list[str], hosts: list[str]) -> dict[str, Any]:
    """Streamlit's flags, as its own command line would give them."""
    return {
        "server_address": host,
        "server_port": port,
        "server_headless": True,
        "server_fileWatcherType": "none",
        "server_runOnSave": False,
        "server_showEmailPrompt": False,
        "server_enableXsrfProtection": True,
        "server_enableCORS": True,
        "server_allowedHosts": hosts,
        "server_maxUploadSize": 1,
        "server_maxMessageSize": 64,
        "server_enableStaticServing": False,
        "browser_gatherUsageStats": False,
        "client_toolbarMode": "viewer",
        "client_showErrorDetails": "type",
        # One event after the other: a click that comes while a page is drawn waits its turn.
        "runner_fastReruns": False,
        "runner_magicEnabled": False,
        "secrets_files": secrets,
        **THEME,
    }


def secrets_of(home: Home, here: Path) -> list[Path]:
    """Where Streamlit's sign-in may be configured; later ones win."""
    return [folder / ".streamlit" / "secrets.toml" for folder in (home.root, here)]


def sign_in(files: list[Path]) -> dict[str, Any] | None:
    """The [auth] of Streamlit's secrets; None = nobody configured a sign-in.

    Raises:
        UsageError: a file that cannot be read, or an [auth] that lacks what Streamlit needs.
    """
    found: dict[str, Any] | None = None
    for file in files:
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
        if isinstance(content.get("auth"), dict):
            found = content["auth"]
    if found is not None:
        for name in ("redirect_uri", "cookie_secret"):
            if not found.get(name):
                raise UsageError(f"[auth] of .streamlit/secrets.toml lacks {name}")
    return found


@contextlib.contextmanager
def start(home: Home, host: str, port: int, here: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A running dashboard, answering, for the time of the block.

    Raises:
        UsageError: more than this machine could reach it and no sign-in is configured.
        FlywheelError: it did not come up; its log says why.
    """
    files = secrets_of(home, here)
    auth = sign_in(files)
    if host not in LOOPBACK and auth is None:
        raise UsageError(
            f"{host} is reached by more than this machine, where names are not checked: configure "
            f"a sign-in first, as [auth] in {files[0]} (docs/operating.md, Dashboard)"
        )
    reached = [*LOOPBACK, host]
    if auth is not None and (name := urlparse(str(auth["redirect_uri"])).hostname):
        reached.append(name)
    log = home.logs / "dashboard.log"
    there = [str(file) for file in files if file.exists()]
    child = children.start(
        "app.dashboard_server", [host, str(port), ",".join(reached), *there], log=log,
        environment={"FLYWHEEL_HOME": str(home.root)},
    )  # fmt: skip
    try:
        _wait(child, host, port, log)
        yield child
    finally:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def url(host: str, port: int) -> str:
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _wait(child: "subprocess.Popen[bytes]", host: str, port: int, log: Path) -> None:
    until = time.monotonic() + _READY_S
    at = f"{url(host, port)}/_stcore/health"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until:
        if child.poll() is not None:
            raise FlywheelError(f"the dashboard ended with code {child.returncode}: {log} says why")
        with contextlib.suppress(OSError), direct.open(at, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise FlywheelError(f"the dashboard did not answer within {_READY_S:g} s: {log} says why")


def main(host: str, port: str, hosts: str, *secrets: str) -> None:
    children.follow_parent()
    from streamlit.web import bootstrap

    flags = options(host, int(port), list(secrets), list(dict.fromkeys(hosts.split(","))))
    bootstrap.load_config_options(flags)
    bootstrap.run(str(PAGE), False, [], flags)


if __name__ == "__main__":
    main(*sys.argv[1:])
