"""Runs in the sandbox: puts a model's program to its tests, which that program never sees.

Enter, on standard input: the program, its tests, a word that marks the result. Leaves: that word
and the outcomes, one line. Invariants: the program runs in another process, which gets arguments
and returns plain data; this process cannot be read or traced by it (it is not dumpable).
"""

import ast
import contextlib
import ctypes
import doctest
import io
import json
import math
import os
import select
import subprocess
import sys
import time
from typing import Any

from plain import decode, encode

LOST_AT_MOST = 3
"""Calls that ended or hung the program; after so many it is not asked any more."""
_LARGEST = 8_000_000
_SHOWN = 400
_NO_DUMPS = 4


Outcomes = list[tuple[bool, str]]
"""Of each test, in their order: right or not, and what is told of it."""


class Lost(Exception):
    """The program ended itself, or did not answer in time."""


class Failed(Exception):
    """What the program raised, as it told."""


class Candidate:
    """The program's function. A call that loses the process starts the next in a new one."""

    def __init__(self, job: Any) -> None:
        self.job, self.lost = job, 0
        self.why: str | None = None
        self.process: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.lost >= LOST_AT_MOST:
            raise Lost("not asked any more")
        if self.process is None:
            self.start()
        said = self.ask(encode(arguments))
        if "value" not in said:
            raise Failed(str(said.get("error")))
        try:
            return decode(said["value"])
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            raise Failed("it returned what is no plain data, or too deep") from None

    def start(self) -> None:
        """
        Raises:
            Failed: the program does not load.
        """
        command = [sys.executable, "-ISc", self.job["candidate"]]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self.buffer = b""
        said = self.ask({"program": self.job["program"], "entry": self.job["entry"]})
        if "error" in said:
            self.stop()
            raise Failed(str(said["error"]))

    def ask(self, said: Any) -> dict[str, Any]:
        try:
            self.process.stdin.write(json.dumps(said).encode() + b"\n")
            self.process.stdin.flush()
            answer = json.loads(self.line())
            if not isinstance(answer, dict):
                raise ValueError
            return answer
        except Lost:
            raise
        except (OSError, ValueError, RecursionError):
            raise self.loss("the program ended its process") from None

    def line(self) -> bytes:
        ends = time.monotonic() + self.job["seconds"]
        out = self.process.stdout.fileno()
        while b"\n" not in self.buffer:
            if not select.select([out], [], [], max(0, ends - time.monotonic()))[0]:
                raise self.loss(f"took longer than {self.job['seconds']:g} s")
            data = os.read(out, 65536)
            self.buffer += data
            if not data or len(self.buffer) > _LARGEST:
                raise self.loss("the program ended its process")
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def loss(self, why: str) -> Lost:
        self.lost, self.why = self.lost + 1, why
        self.stop()
        return Lost(why)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def same(got: Any, wanted: Any) -> bool:
    """Equal, with lists and tuples alike, numbers within rounding, and truth values apart."""
    if isinstance(wanted, bool) or isinstance(got, bool):
        return got is wanted
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        both = isinstance(wanted, int) and isinstance(got, int)
        return got == wanted if both else math.isclose(got, wanted, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(wanted, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(wanted, dict) and isinstance(got, dict):
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in wanted)
    return type(got) is type(wanted) and got == wanted


def by_cases(candidate: Candidate, job: Any, outcomes: Outcomes) -> None:
    for arguments, wanted in job["cases"]:
        call = f"{job['entry']}({', '.join(map(repr, arguments))})"
        try:
            got = candidate(*arguments)
            right = same(got, wanted)
            shown = f"{call} returned {got!r}, wanted {wanted!r}"
        except (Failed, Lost) as error:
            right, shown = False, f"{call}: {error}"
        outcomes.append((right, shown))


class Counting(ast.NodeTransformer):
    """Each assertion is counted instead of ending the tests; one of a constant is no test."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if isinstance(node.test, ast.Constant):
            return ast.copy_location(ast.Pass(), node)
        thunk = ast.Lambda(ast.arguments([], [], None, [], [], None, []), node.test)
        count = ast.Call(ast.Name("__count__", ast.Load()), [thunk], [])
        return ast.copy_location(ast.Expr(count), node)


def by_check(candidate: Candidate, job: Any, outcomes: Outcomes) -> None:
    """Tests that are a function `check(candidate)`, as HumanEval's."""

    def count(asserted: Any) -> None:
        try:
            outcomes.append((bool(asserted()), "a test"))
        except (Failed, Lost) as error:
            outcomes.append((False, str(error)))
        except Exception as error:
            outcomes.append((False, f"{type(error).__name__}: {error}"))

    space: dict[str, Any] = {"__name__": "tests", "__count__": count}
    exec(job["setup"], space)
    tree = Counting().visit(ast.parse(job["check"]))
    exec(compile(ast.fix_missing_locations(tree), "<tests>", "exec"), space)
    try:
        space["check"](candidate)
    except Exception as error:  # between two assertions
        outcomes.append((False, f"{type(error).__name__}: {error}"))


def by_examples(candidate: Candidate, job: Any, outcomes: Outcomes) -> None:
    """The examples that the head of a function shows, as doctest reads them."""
    space: dict[str, Any] = {"__name__": "examples"}
    exec(job["setup"], space)
    space[job["entry"]] = candidate
    for example in doctest.DocTestParser().get_examples(job["setup"]):
        try:
            got = repr(eval(example.source.strip(), space))
            wanted = example.want.strip()
            right = got == wanted or same(*map(ast.literal_eval, (got, wanted)))
            shown = f"{example.source.strip()} returned {got}, wanted {wanted}"
        except (Failed, Lost) as error:
            right, shown = False, f"{example.source.strip()}: {error}"
        except Exception:  # an example that is no Python is no test
            continue
        outcomes.append((right, shown))


def examine(job: Any) -> dict[str, Any]:
    candidate, outcomes = Candidate(job), Outcomes()
    try:
        candidate.start()
    except (Failed, Lost) as error:
        return {"loaded": str(error), "outcomes": [], "lost": candidate.why}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        {"cases": by_cases, "check": by_check, "examples": by_examples}[job["kind"]](
            candidate, job, outcomes
        )
    candidate.stop()
    shown = [[right, shown[-_SHOWN * 4 :]] for right, shown in outcomes]
    return {"loaded": None, "outcomes": shown, "lost": candidate.why}


def main() -> None:
    ctypes.CDLL(None).prctl(_NO_DUMPS, 0, 0, 0, 0)
    job = json.loads(sys.stdin.buffer.read())
    sys.stdout.write("\n" + job["word"] + json.dumps(examine(job)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
