"""Runs the checks side by side. A check that hangs is cut off, one that raises is itself reported.

Enter a case and the table; leave findings, in the table's order. Invariant: nothing that a check
does, short of ending this process, keeps the others from being told.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from app.doctor.finding import Case, Check, Finding, wrong

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Told:
    """What one check said."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


def examine(case: Case, checks: Mapping[str, Check]) -> list[Told]:
    looks = [_Look(name, check, case) for name, check in checks.items()]
    for look in looks:
        look.thread.start()
    return [look.wait() for look in looks]


class _Look:
    """One check under way, in a thread that nobody waits for longer than its limit."""

    def __init__(self, name: str, check: Check, case: Case) -> None:
        self.check, self.case, self.told = check, case, Told(name)
        deep = check.deep_limit_s if case.deep else None
        self.limit_s = deep or check.limit_s
        self.at = ""
        """What is being looked at, where the check says so."""
        self.begun = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"doctor {name}")

    def wait(self) -> Told:
        self.thread.join(max(0.0, self.begun + self.limit_s - time.monotonic()))
        if self.thread.is_alive():
            late = wrong(
                f"the check of {self.told.name} did not end within {self.limit_s:g} s"
                f"{self.where()}",
                "look again; if it stays, what it looks at hangs: a disk, a server, an environment",
            )
            return Told(self.told.name, [*self.told.findings, late], self.limit_s)
        return self.told

    def _run(self) -> None:
        try:
            found = self._apart() if self.check.apart else self.check.looks(self.case)
            for said in found:
                if isinstance(said, str):
                    self.at = said
                else:
                    self.told.findings.append(said)
        except Exception as error:  # it is reported, as what it is
            self.told.findings.append(failed(self.told.name, error))
        self.told.seconds = time.monotonic() - self.begun

    def where(self) -> str:
        return f", at {self.at}; what comes after it was not looked at" if self.at else ""

    def _apart(self) -> Iterator[Finding | str]:
        """The same, said line by line by a process that can be ended."""
        from app.doctor.apart import packed

        child = subprocess.Popen(
            [sys.executable, "-m", "app.doctor.apart", self.told.name, packed(self.case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "FLYWHEEL_FOLLOW_PARENT": "1",
                "FLYWHEEL_HOME": str(self.case.home.root),
            },
            start_new_session=True,
        )
        assert child.stdin and child.stdout and child.stderr
        stop = threading.Timer(max(0.0, self.limit_s - 1.0), _end, [child.pid])
        stop.daemon = True
        stop.start()
        ended = False
        with child.stdout, child.stderr:
            for line in child.stdout:
                one = msgspec.json.decode(line, type=Finding | str | None)
                if one is None:
                    ended = True
                else:
                    yield one
            said = child.stderr.read().decode(errors="replace").strip()
        code = child.wait()
        timely = stop.is_alive()
        stop.cancel()
        child.stdin.close()
        _end(child.pid)  # what it may have started
        if ended:
            return
        if timely:
            yield wrong(
                f"the check of {self.told.name} ended with code {code} before it was through"
                f"{self.where()}{': ' if said else ''}{said[-300:]}",
                "what it looked at ends the process: its code, or a damaged file",
            )
        else:
            yield wrong(
                f"the check of {self.told.name} did not end within {self.limit_s:g} s"
                f"{self.where()}",
                "what it looks at hangs: its code, or a file that somebody holds",
            )


def failed(name: str, error: BaseException) -> Finding:
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, OSError):
        return wrong(
            f"the check of {name} could not look: {error}",
            "see the lines of home and disk; run it as the one who owns the home",
        )
    return wrong(
        f"the check of {name} itself failed: {type(error).__name__}: {error} "
        f"({Path(last.filename).name}:{last.lineno})",
        "the message says what it met; if the file is sound, report it as a bug of flywheel doctor",
    )


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def worst(told: list[Told]) -> str:
    levels = {finding.level for one in told for finding in one.findings}
    return next((level for level in ("wrong", "warning") if level in levels), "ok")


def as_lines(told: list[Told]) -> list[dict[str, object]]:
    """For scripts: one object a finding."""
    return [
        {"check": one.name, **json.loads(msgspec.json.encode(finding))}
        for one in told
        for finding in one.findings
    ]
