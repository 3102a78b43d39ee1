"""A process below which nothing survives, not even what left its group and its session.

Enters: a process that was just forked. Leave: a child of it, in which the work is done, and above
it the process itself, which only waits: for that child's end, for a word, or for the end of who
forked it; then it ends all that is left. Invariant: when it is gone, so is every process that came
from it, unless one of them ended it with a signal that nobody can refuse.
"""

import contextlib
import ctypes
import os
import select
import signal
import time
from pathlib import Path

SWEEP_S = 10.0
"""Within which all that was killed must be gone; what the kernel holds longer is left to it."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WORDS = {signal.SIGTERM, signal.SIGCHLD}
_PAUSE_S = 0.001


def go_below(forker: int) -> None:
    """To be called first thing in a process that was just forked; returns in a child of it, whose
    group is its own and which dies with it.

    Args:
        forker: the process that forked.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with contextlib.suppress(PermissionError):  # a session's first process has its group
        os.setpgid(0, 0)
    if os.getppid() != forker:
        os._exit(0)
    own = os.getpid()
    child = os.fork()
    if child:
        _wait_and_sweep(child)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.setpgid(0, 0)
    if os.getppid() != own:
        os._exit(0)


def end(pid: int) -> None:
    """Ends what went below, and waits until it is gone.

    Args:
        pid: of the process that was forked, not yet waited for.
    """
    gone = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(gone, signal.SIGTERM)
        poll = select.poll()
        poll.register(gone, select.POLLIN)
        if not poll.poll(2 * SWEEP_S * 1000):
            signal.pidfd_send_signal(gone, signal.SIGKILL)
    finally:
        os.close(gone)
        os.waitpid(pid, 0)


def _wait_and_sweep(child: int) -> None:
    """Never returns. Holds nothing of what it inherited: neither locks nor ends of pipes."""
    try:
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        while signal.sigwait(_WORDS) != signal.SIGTERM and child not in _reaped():
            pass
        ends = time.monotonic() + SWEEP_S
        while time.monotonic() < ends:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _reaped()
            time.sleep(_PAUSE_S)
    except ChildProcessError:
        pass
    finally:
        os._exit(0)


def _reaped() -> list[int]:
    """
    Raises:
        ChildProcessError: there is no child any more.
    """
    found = []
    while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
        found.append(pid)
    return found


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
