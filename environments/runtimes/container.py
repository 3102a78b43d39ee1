"""Programs in docker or podman: one container an `exec`, over the runtime's workspace.

Enter: a configuration and a folder. Leaves: a runtime. Invariant: no container outlives its
program: each has a name of its own, by which it is removed however the program ended.
"""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from environments.runtimes.child import Child, Ended, Watch
from environments.runtimes.contract import Container, Limits, Ran, Reason, RuntimeFailure
from environments.runtimes.watchdog import size_of
from environments.runtimes.workspace import Order, Workspace
from flywheel.errors import MissingPart, ProjectError

WORKSPACE = "/workspace"
ENGINES = ("podman", "docker")
USER = 1000
"""Whom programs run as, where we are root; else ourselves."""
_ANSWER_S = 20.0
_START_S = 60.0
"""What an engine may take beside the program's own time."""
_LOOK_S = 0.2
_ENGINE_FAILED = 125
"""Exit code by which both engines say that they could not run a container."""
_PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class ContainerRuntime(Workspace):
    def __init__(self, config: Container, folder: Path) -> None:
        super().__init__(folder, config.limits)
        self.config = config
        self._engine = engine(config.engine)
        self._names: set[str] = set()

    async def start(self) -> None:
        if os.geteuid() == 0:
            self.owner = USER
        self.make()

    async def run(self, order: Order) -> Ran:
        if order.door is not None:
            raise ProjectError("a container has no door: set network = true in its limits")
        limits = order.limits
        name = f"flywheel-{secrets.token_hex(8)}"
        options = run_options(name, self.work, limits, order.env, order.cwd)
        words = [self._engine, *options, self.config.image, *order.command]
        child = Child(words, order.stdin, _PATH, output=limits.output)
        self._names.add(name)
        try:
            ended = await child.run(limits.wall_s + _START_S, self._watch(limits))
            starved = await asyncio.to_thread(self._starved, name)
        finally:
            await asyncio.to_thread(self._end, name)
        return _ran(ended, starved, self._engine)

    async def stop(self) -> None:
        for name in tuple(self._names):
            await asyncio.to_thread(self._end, name)
        self.remove()

    def _watch(self, limits: Limits) -> Watch:
        async def watch(pid: int) -> Reason:
            while size_of(self.work) <= limits.workspace:
                await asyncio.sleep(_LOOK_S)
            return "output"

        return watch

    def _starved(self, name: str) -> bool:
        asked = ["inspect", "--format", "{{.State.OOMKilled}}", name]
        return _ask(self._engine, *asked).strip() == "true"

    def _end(self, name: str) -> None:
        _ask(self._engine, "rm", "--force", name)
        self._names.discard(name)


def run_options(
    name: str, work: Path, limits: Limits, env: Mapping[str, str], cwd: str
) -> list[str]:
    """Of the engine's `run`, up to the image."""
    user = USER if os.geteuid() == 0 else os.geteuid()
    options = ["run", "--name", name, "--init", "--interactive", "--read-only", "--pull", "never"]
    options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--ipc", "private"]
    options += ["--user", f"{user}:{user}", "--pids-limit", str(limits.processes)]
    options += ["--memory", str(limits.memory), "--memory-swap", str(limits.memory)]
    options += ["--network", "bridge" if limits.network else "none"]
    small = min(limits.workspace, limits.memory // 4)
    options += ["--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={small}", "--shm-size", str(small)]
    seconds = int(limits.cpu_s) + 1
    for bound in (f"cpu={seconds}:{seconds + 1}", f"fsize={limits.file}", "core=0", "nofile=512"):
        options += ["--ulimit", bound]
    options += ["--volume", f"{work}:{WORKSPACE}:rw", "--workdir", f"{WORKSPACE}/{cwd}"]
    for key, value in {"HOME": WORKSPACE, "TMPDIR": "/tmp", **env}.items():
        options += ["--env", f"{key}={value}"]
    return options


@cache
def engine(wanted: str) -> str:
    """The first engine that answers.

    Raises:
        MissingPart: none does.
    """
    names = ENGINES if wanted == "auto" else (wanted,)
    for name in names:
        if shutil.which(name, path=_PATH["PATH"]) and _ask(name, "version"):
            return name
    raise MissingPart(
        f"no container engine answers ({', '.join(names)}): start one, or use runtime = sandbox"
    )


def _ask(name: str, *words: str) -> str:
    """What the engine says; "" where it fails."""
    try:
        said = subprocess.run(
            [name, *words], capture_output=True, text=True, timeout=_ANSWER_S, env=_PATH
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout if said.returncode == 0 else ""


def _ran(ended: Ended, starved: bool, name: str) -> Ran:
    if ended.stopped is None and (ended.status == _ENGINE_FAILED or ended.status < 0):
        raise RuntimeFailure(f"{name} ran nothing: {ended.stderr.strip()[-500:]}")
    by = ended.status - 128
    reasons: dict[int, Reason] = {signal.SIGXCPU: "timeout", signal.SIGXFSZ: "output"}
    reason: Reason = "ok" if ended.status == 0 else "error"
    if by > 0:
        reason = reasons.get(by, "killed")
    if starved and reason != "ok":
        reason = "memory"
    code = None if by > 0 or ended.status < 0 else ended.status
    shown = (ended.stdout, ended.stderr, ended.seconds)
    return Ran(ended.stopped or reason, code, *shown, None, None, ended.cut)
