"""Whether programs that models write can be walled off here: bubblewrap, or a container engine."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from app.doctor.finding import Case, Finding, ok, warning
from environments.runtimes.contract import Ran, RuntimeFailure, Sandbox
from flywheel.errors import MissingPart


def sandbox(case: Case) -> Iterator[Finding]:
    """Not wrong where it fails: only environments that run programs need one."""
    from environments.runtimes import cgroup

    try:
        ran = asyncio.run(_tried())
    except MissingPart as error:
        yield warning(f"no sandbox: {error}", "apt install bubblewrap util-linux bash")
        return
    except RuntimeFailure as error:
        yield warning(
            f"bubblewrap is here and makes no sandbox: {error}",
            "allow user namespaces: sysctl -w user.max_user_namespaces=15000, and on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0; in docker: --privileged",
        )
        return
    group = cgroup.make(1 << 30)
    if group is not None:
        group.remove()
    bounded = "the kernel bounds" if group is not None else "a watchdog bounds"
    yield ok(f"programs run in a sandbox ({ran.seconds * 1000:.0f} ms); {bounded} their memory")


async def _tried() -> Ran:
    from environments.runtimes.sandbox import SandboxRuntime

    with tempfile.TemporaryDirectory() as folder:
        runtime = SandboxRuntime(Sandbox(), Path(folder))
        await runtime.start()
        try:
            return await runtime.exec(["true"])
        finally:
            await runtime.stop()
