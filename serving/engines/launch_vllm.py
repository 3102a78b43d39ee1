"""Runs vLLM's server, in vLLM's own environment, as a process that leaves nothing behind.

`PYTHON launch_vllm.py PORT ARGUMENTS…`, started by `serving/engines/vllm.py`. Standard library
only, and vLLM by name only: this file lies in our packages and is run by another Python.

When our end of standard input closes, this process ends. Those it started (vLLM's engine core, its
workers) run this file again as `__mp_main__` and ask the kernel to kill them with their parent; so
none outlives any other, whichever is killed with -9, and Python's resource tracker, which goes
last, removes the shared memory.
"""

import ctypes
import importlib
import os
import signal
import socket
import sys
import threading

_SERVER = "vllm.entrypoints.launchers.api_server.entry"
_IN_USE = 98
_PR_SET_PDEATHSIG = 1


def _leave_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent in (0, 1):
        os._exit(1)


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            print(f"port {port} is in use", file=sys.stderr)
            raise SystemExit(_IN_USE) from None


def main() -> None:
    threading.Thread(target=_leave_at_end_of_input, daemon=True).start()
    port = int(sys.argv[1])
    _refuse_taken(port)
    sys.argv = ["vllm", "--host", "127.0.0.1", "--port", str(port), *sys.argv[2:]]
    importlib.import_module(_SERVER).main()


if __name__ == "__mp_main__":
    _die_with_parent()
if __name__ == "__main__":
    main()
