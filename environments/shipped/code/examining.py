"""A program's examination, from outside: what is sent into the sandbox, what comes out of it.

Enter: a program's text and its tests. Leaves: how many it passed, and what it is told of the
others. Invariant: only a line with this examination's own word counts; a program that ends the
examiner, or prints, passes nothing.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from environments.runtimes.contract import Limits, Ran, Runtime

LIMITS = Limits(wall_s=60.0, cpu_s=40.0, processes=32, network=False)
SECONDS = 5.0
"""Of one call."""
_HERE = Path(__file__).parent
_TOLD = 3
"""Failures that are told."""


class Examined(NamedTuple):
    passed: int
    tests: int
    failures: Sequence[str]
    reason: str
    """How the program ended: "ok", "did not load", "lost" (a call ended or hung it), or what
    stopped the examination: "timeout", "memory", "output", "killed", "error"."""

    @property
    def share(self) -> float:
        return self.passed / self.tests if self.tests else 0.0

    @property
    def all_passed(self) -> bool:
        return 0 < self.tests == self.passed


async def examine(runtime: Runtime, program: str, tests: Mapping[str, Any]) -> Examined:
    """`tests`: "kind" ("cases", "check" or "examples"), "entry", and what that kind needs.

    Raises:
        RuntimeFailure: the machine's fault.
    """
    word = secrets.token_hex(16)
    job = {"word": word, "program": program, "seconds": SECONDS, "candidate": _text("candidate")}
    ran = await runtime.exec(
        ["python3", "-ISc", _text("examiner")],
        stdin=json.dumps({**job, **tests}),
        limits=LIMITS.model_copy(update={"output": 8 << 20}),
    )
    line = next((one for one in ran.stdout.splitlines() if one.startswith(word)), None)
    if line is None:
        return Examined(0, 0, (_ended(ran),), ran.reason if not ran.ok else "error")
    said = json.loads(line.removeprefix(word))
    if said["loaded"] is not None:
        return Examined(0, 0, (said["loaded"],), "did not load")
    outcomes = said["outcomes"]
    failures = [shown for right, shown in outcomes if not right]
    passed = len(outcomes) - len(failures)
    reason = "lost" if said["lost"] else "ok"
    return Examined(passed, len(outcomes), failures[:_TOLD], reason)


@cache
def _text(name: str) -> str:
    plain, own = ((_HERE / f"{one}.py").read_text(encoding="utf-8") for one in ("plain", name))
    return f"{plain}\n\n{own}".replace("from plain import decode, encode\n", "")


def _ended(ran: Ran) -> str:
    said = {
        "timeout": "the program took too long",
        "memory": "the program took too much memory",
        "output": "the program wrote too much",
    }
    return said.get(ran.reason, "the program ended the process that tests it")
