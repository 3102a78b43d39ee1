"""Ports: free, ours, or taken by whom; and what of ours can be reached from other machines."""

import ipaddress
from collections.abc import Iterator

from app.doctor.finding import Case, Finding, ok, warning, wrong
from app.doctor.processes import Listener, belongs, listeners
from flywheel.errors import FlywheelError
from flywheel.project import load_project

PORTS = {"Prefect": (4200, "prefect"), "MLflow": (5000, "mlflow"), "dashboard": (8501, "dashboard")}
"""What listens by default where, and the command that starts it."""


def ports(case: Case) -> Iterator[Finding]:
    open_now: dict[int, list[Listener]] = {}
    for one in listeners():
        open_now.setdefault(one.port, []).append(one)
    for name, port, asked in _gateways(case):
        there = open_now.get(port)
        if port == 0 or not there:
            yield ok(f"the gateway's port {port} of {name} is free")
        elif any(_ours(one, case) for one in there):
            yield ok(f"the gateway's port {port} of {name} is ours")
        else:
            yield wrong(
                f"the gateway's port {port} of {name} is taken by {_who(there)}",
                f"stop that, or: flywheel serve {asked} --port 0 (or another under [serving])",
            )
    for what, (port, command) in PORTS.items():
        there = open_now.get(port)
        if not there:
            yield ok(f"{what}'s port {port} is free")
        elif any(_ours(one, case) for one in there):
            yield ok(f"{what}'s port {port} is ours")
        else:
            yield warning(
                f"{what}'s port {port} is taken by {_who(there)}",
                f"flywheel {command} --port ANOTHER",
            )


def exposure(case: Case) -> Iterator[Finding]:
    wide = [one for one in listeners() if _ours(one, case) and not _loopback(one.host)]
    for one in wide:
        assert one.owner
        yield warning(
            f"{one.owner.command!r} (pid {one.owner.pid}) listens on {one.host}:{one.port}, which "
            "other machines reach",
            "have it listen on 127.0.0.1, or put a proxy with TLS and a firewall before it",
        )
    if not wide:
        yield ok("nothing of this home listens beyond this machine")


def _gateways(case: Case) -> Iterator[tuple[str, int, str]]:
    for folder in case.folders:
        try:
            project = load_project(folder)
        except (FlywheelError, OSError):
            continue  # the check of projects tells
        if project.serving.port:
            yield project.name, project.serving.port, str(folder)


def _ours(one: Listener, case: Case) -> bool:
    return one.owner is not None and belongs(one.owner, case.home)


def _who(there: list[Listener]) -> str:
    known = next((one.owner for one in there if one.owner), None)
    return f"pid {known.pid} ({known.command})" if known else "a process that cannot be seen"


def _loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
