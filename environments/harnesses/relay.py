"""Runs inside a walled-off runtime: a loopback port there that leads to the socket of the door.

    python3 relay.py SOCKET PORT COMMAND …

Enter: bytes of the program. Leave: the same bytes. Invariant: ends with the command, with its exit
code, or dies by its signal. Knows only the standard library, of any Python 3 that a runtime has.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            sink.sendall(chunk)
    for end, how in ((sink, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            end.shutdown(how)


def serve(listener: socket.socket, path: str) -> None:
    while True:
        inner, _ = listener.accept()
        outer = socket.socket(socket.AF_UNIX)
        try:
            outer.connect(path)
        except OSError:
            inner.close()
            continue
        for ends in ((inner, outer), (outer, inner)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def main() -> None:
    path, port, *command = sys.argv[1:]
    listener = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=serve, args=(listener, os.path.abspath(path)), daemon=True).start()
    try:
        code = subprocess.call(command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        sys.exit(127)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
