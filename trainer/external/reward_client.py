"""Asks Flywheel's environment what an answer is worth. Copied into a job; standard library only.

One child of Flywheel's own interpreter a process, started with the first answer, asked one line at
a time. An answer that cannot be graded raises: the engine would have to learn from an invented
number otherwise.
"""

import json
import subprocess
import threading
from typing import Any

TOLD = json.loads("@TOLD@")
TRIES = 3


class Ungraded(RuntimeError):
    """An answer has no score; the reason is the environment's."""


class Child:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, problem: str, answer: str) -> float:
        with self._lock:
            for number in range(TRIES):
                try:
                    said = self._said({"problem": problem, "answer": answer})
                    break
                except (OSError, ValueError):
                    self._end()
                    if number == TRIES - 1:
                        raise
                except BaseException:  # an answer that is still to come would be the next one's
                    self._end()
                    raise
        if said["score"] is None:
            raise Ungraded(f"problem {problem}: {said['reason']}")
        return float(said["score"])

    def _said(self, request: dict[str, str]) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [TOLD["python"], "-m", "environments.scoring", TOLD["spec"]],
                cwd=TOLD["root"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps(request).encode() + b"\n")
        pipes.stdin.flush()
        return json.loads(pipes.stdout.readline())

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


CHILD = Child()


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **_: Any,
) -> float:
    """verl's custom reward function."""
    if not extra_info or "problem" not in extra_info:
        raise Ungraded("the row names no problem: it is not one of this job's")
    return CHILD.ask(str(extra_info["problem"]), solution_str)
