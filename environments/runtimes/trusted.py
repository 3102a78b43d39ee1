"""Programs as plain child processes: for code that one would run oneself.

Enter: a configuration and a folder. Leaves: a runtime that walls off nothing: what a program takes
is watched, and it ends with its process group. Invariant: it is used where an environment
or a project names it, never because a sandbox is missing.
"""

import sys
from pathlib import Path

from environments.runtimes.child import Child
from environments.runtimes.contract import Ran, Reason, RuntimeFailure, Trusted
from environments.runtimes.watchdog import Watchdog
from environments.runtimes.workspace import Order, Workspace

WARNING = (
    "runtime = trusted: programs run as you, with your files and your network; choose it for code "
    "that you would run yourself, and sandbox for what a model writes"
)


class TrustedRuntime(Workspace):
    def __init__(self, config: Trusted, folder: Path) -> None:
        super().__init__(folder, config.limits)
        self.config = config
        self._running: set[Child] = set()

    async def start(self) -> None:
        self.make()

    async def run(self, order: Order) -> Ran:
        """Its door is open anyway."""
        full = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.work),
            "LANG": "C.UTF-8",
            **order.env,
        }
        limits, cwd = order.limits, self.work / order.cwd
        watchdog = Watchdog(limits, self.work, grouped=False)
        child = Child(order.command, order.stdin, full, cwd=cwd, output=limits.output)
        self._running.add(child)
        try:
            ended = await child.run(limits.wall_s, watchdog.watch)
        except RuntimeFailure as failure:
            if isinstance(failure.__cause__, FileNotFoundError | PermissionError):
                return Ran("error", 127, "", f"{failure}\n", 0.0, 0.0, None)
            raise
        finally:
            self._running.discard(child)
        cpu_s = ended.used.ru_utime + ended.used.ru_stime
        code = ended.status if ended.status >= 0 else None
        reason: Reason = ended.stopped or ("ok" if code == 0 else "error" if code else "killed")
        shown = (ended.stdout, ended.stderr, ended.seconds)
        return Ran(reason, code, *shown, cpu_s, watchdog.peak, ended.cut)

    async def stop(self) -> None:
        for child in tuple(self._running):
            child.end("killed")
        self.remove()
