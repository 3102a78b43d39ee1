"""What a reward or a grader script left behind is gone when it has been graded, wherever it hid."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from environments import sweeping
from environments.define import Environment, metric
from environments.graders.script import read
from environments.graders.session import run_script
from environments.grading import grade
from tests.environments.test_isolation import by_name, trace

DAEMON = """
import os, sys, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(3600)
"""


def alive(told: Path) -> list[str]:
    return [pid for pid in told.read_text().split() if Path("/proc", pid, "exe").exists()]


def start_daemon(told: Path, least: int) -> None:
    subprocess.run([sys.executable, "-c", DAEMON, told], check=True)
    while not told.exists() or len(told.read_text().split()) < least:
        time.sleep(0.01)


class Starts(Environment):
    told: ClassVar[Path]

    @metric
    def returns(self, answer: str) -> float:
        start_daemon(self.told, 1)
        return 1.0

    @metric
    def dies(self, answer: str) -> float:
        start_daemon(self.told, 2)
        os._exit(0)


class Hangs(Environment):
    limit_s = 4.0
    told: ClassVar[Path]

    @metric
    def hangs(self, answer: str) -> float:
        start_daemon(self.told, 1)
        time.sleep(3600)
        return 1.0


def test_a_daemon_that_a_reward_started_ends_with_it(tmp_path: Path) -> None:
    told = Starts.told = tmp_path / "daemons"
    grades = by_name(grade(Starts(), trace()))
    assert grades["returns"].value == 1.0
    assert grades["dies"].reason == "the reward ended its process"
    assert len(told.read_text().split()) == 2 and alive(told) == []


@pytest.mark.slow
def test_a_daemon_of_a_reward_that_hangs_ends_with_it(tmp_path: Path) -> None:
    told = Hangs.told = tmp_path / "daemons"
    assert "took longer" in (grade(Hangs(), trace())[0].reason or "")
    assert told.read_text() and alive(told) == []


def test_a_daemon_that_a_grader_script_started_ends_with_it(tmp_path: Path) -> None:
    told, script = tmp_path / "daemons", tmp_path / "grader.py"
    script.write_text(
        "# /// script\n# [tool.flywheel]\n# rewards = { close = 1.0 }\n# ///\n"
        "import json, subprocess, sys, os, time\n"
        f"told = {str(told)!r}\n"
        f"subprocess.run([sys.executable, '-c', {DAEMON!r}, told], check=True)\n"
        "while not os.path.exists(told): time.sleep(0.01)\n"
        "for line in sys.stdin:\n"
        "    print(json.dumps({'id': json.loads(line)['id'], 'close': 1.0}))\n"
    )
    found = run_script(read(script), Path(sys.executable), [(trace(), None)], 60.0)
    assert found[0]["close"].value == 1.0
    assert told.read_text() and alive(told) == []


def test_nothing_is_left_either_when_whoever_grades_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "daemons"
    source = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from environments.define import Environment, metric
        from environments.grading import grade
        from tests.environments.test_isolation import trace
        from tests.environments.test_sweeping import start_daemon
        class Hangs(Environment):
            limit_s = 600.0
            @metric
            def hangs(self, answer: str) -> float:
                start_daemon(Path({str(told)!r}), 1)
                time.sleep(3600)
        grade(Hangs(), trace())
    """)
    grader = subprocess.Popen([sys.executable, "-c", source])
    until(lambda: told.exists() and told.read_text() != "")
    grader.kill()
    grader.wait()
    until(lambda: alive(told) == [])


def test_a_crowd_that_forks_as_it_dies_is_ended_too() -> None:
    ours, theirs = os.pipe()
    forker = os.getpid()
    pid = os.fork()
    if pid == 0:
        sweeping.go_below(forker)
        for _ in range(6):  # each of them, so 64
            if os.fork() == 0:
                os.setsid()
        time.sleep(3600)
    os.close(theirs)
    sweeping.end(pid)
    assert os.read(ours, 1) == b""  # nobody holds the other end any more
    os.close(ours)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)
