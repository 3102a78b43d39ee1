"""Ordinary programs in the sandbox: what they are given, and what is told of them."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from environments.runtimes import bwrap, users
from environments.runtimes.contract import Ran, RuntimeFailure, Sandbox
from environments.runtimes.languages import LANGUAGES, run_code
from environments.runtimes.sandbox import SandboxRuntime
from environments.runtimes.seccomp import denials
from flywheel.errors import MissingPart, ProjectError
from tests.environments.runtimes.conftest import MIB, Box

SOURCES = {
    "python": "import json, ctypes, ssl, sys; print(input() + sys.prefix); sys.exit(3)",
    "javascript": "process.stdin.on('data', d => { console.log(`${d}`); process.exit(3) })",
    "bash": "read word; echo $word; exit 3",
    "c": '#include <stdio.h>\nint main() { char w[9]; scanf("%8s", w); puts(w); return 3; }',
    "cpp": "#include <iostream>\n"
    "int main() { std::string w; std::cin >> w; std::cout << w; return 3; }",
}

BOMB = """
import os, signal
for made in range(200):
    try:
        if os.fork() == 0: signal.pause()
    except OSError: break
print(made)
"""


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_language_runs_with_its_input(box: Box, language: str) -> None:
    tool = (LANGUAGES[language].compile or LANGUAGES[language].run)[0]
    if tool != "python3" and shutil.which(tool, path="/usr/bin") is None:
        pytest.skip(f"{tool} is not installed")
    ran = asyncio.run(run_code(box.runtime, language, SOURCES[language], stdin="hello"))
    assert (ran.reason, ran.code) == ("error", 3), ran.stderr
    assert ran.stdout.startswith("hello")


def test_what_a_compiler_refuses_is_told(box: Box) -> None:
    if shutil.which("gcc", path="/usr/bin") is None:
        pytest.skip("gcc is not installed")
    ran = asyncio.run(run_code(box.runtime, "c", "int main() { return missing; }"))
    assert ran.reason == "error" and "missing" in ran.stderr


def test_a_language_that_is_not_known_is_named(box: Box) -> None:
    with pytest.raises(ProjectError, match="cobol"):
        asyncio.run(run_code(box.runtime, "cobol", ""))


def test_how_a_program_ended_is_told_apart(box: Box) -> None:
    assert box.run("true")[:2] == ("ok", 0)
    assert box.bash("exit 7")[:2] == ("error", 7)
    assert box.bash("kill -SEGV $$")[:2] == ("killed", None)
    assert box.bash("kill -9 $$")[:2] == ("killed", None)
    assert box.run("sleep", "60", wall_s=0.3)[:2] == ("timeout", None)
    missing = box.run("not-there")
    assert missing[:2] == ("error", 127) and "not-there: command not found" in missing.stderr


def test_what_it_used_is_measured(either: Box) -> None:
    source = "some = b'x' * 2**26\nfor _ in range(10**6): pass\nprint(len(some))"
    ran = either.python(source)
    assert ran.ok
    assert ran.peak_memory is not None and ran.peak_memory > 50 * MIB
    assert ran.cpu_s is not None and 0.01 < ran.cpu_s < 10
    assert ran.seconds > ran.cpu_s / 8


def test_the_workspace_stays_between_programs_and_tmp_does_not(box: Box) -> None:
    asyncio.run(box.runtime.write("a/b/given.txt", "given"))
    ran = box.bash("cat given.txt; echo kept > kept; touch /tmp/gone; pwd", stdin="")
    assert ran.stderr.startswith("cat: given.txt")
    asyncio.run(box.runtime.exec(["true"], cwd="a/b"))
    inside = asyncio.run(box.runtime.exec(["cat", "given.txt"], cwd="a/b", env={"X": "y"}))
    assert inside.stdout == "given"
    assert box.bash("cat kept; ls /tmp").stdout == "kept\n"
    assert asyncio.run(box.runtime.read("kept")) == b"kept\n"
    assert box.run("true").ok


def test_variables_and_input_arrive_as_given(box: Box) -> None:
    run = box.runtime.exec(
        ["bash", "-c", 'printf %s "$WORD"; cat'], stdin=b"\x00\xff", env={"WORD": "a b"}
    )
    assert asyncio.run(run).stdout == "a b\x00�"


def test_long_output_keeps_its_beginning_and_its_end(box: Box) -> None:
    ran = box.bash("echo first; head -c 5000 /dev/zero | tr '\\0' x; echo; echo last", output=1000)
    assert ran.ok and ran.cut and len(ran.stdout) < 1100
    assert ran.stdout.startswith("first\n") and ran.stdout.endswith("last\n")


def test_a_door_leads_to_one_address_and_no_other(box: Box) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from the host" + b"." * 100_000)

        def log_message(self, *parts: object) -> None:
            pass

    with (
        HTTPServer(("127.0.0.1", 0), Handler) as server,
        HTTPServer(("127.0.0.1", 0), Handler) as no,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        source = f"""
import urllib.request
print(len(urllib.request.urlopen("http://127.0.0.1:{server.server_port}/v1").read()))
try: urllib.request.urlopen("http://127.0.0.1:{no.server_port}/v1")
except OSError as error: print("refused")
"""
        try:
            ran = box.run("python3", "-c", source, door=f"http://127.0.0.1:{server.server_port}/v1")
        finally:
            server.shutdown()
            thread.join()
    assert ran.stdout.split() == ["100013", "refused"], ran.stderr
    assert box.run("bash", "-c", "exit 5", door="http://127.0.0.1:9999/v1").code == 5
    with pytest.raises(ProjectError, match="loopback"):
        box.run("true", door="http://example.com/v1")


def test_many_programs_run_at_once(box: Box) -> None:
    async def all_of_them() -> list[Ran]:
        return await asyncio.gather(*(box.runtime.exec(["echo", str(n)]) for n in range(6)))

    assert [ran.stdout for ran in asyncio.run(all_of_them())] == [f"{n}\n" for n in range(6)]
    assert len(os.listdir("/proc/self/fd")) < 40


def test_a_run_that_is_given_up_leaves_nothing(box: Box) -> None:
    async def cancelled() -> None:
        running = asyncio.ensure_future(box.runtime.exec(["bash", "-c", "touch x; sleep 600"]))
        while not (box.runtime.work / "x").exists():
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(500):
            if not box.left():
                return
            await asyncio.sleep(0.02)

    asyncio.run(cancelled())
    assert box.left() == []


def test_what_is_stopped_meanwhile_is_ended_first(box: Box) -> None:
    async def main() -> Ran:
        running = asyncio.ensure_future(box.runtime.exec(["bash", "-c", "touch x; sleep 600"]))
        while not (box.runtime.work / "x").exists():
            await asyncio.sleep(0.01)
        await box.runtime.stop()
        return await running

    assert asyncio.run(main()).reason == "killed"
    assert not box.runtime.work.exists()


def test_a_machine_out_of_open_files_is_no_programs_fault(box: Box) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, hard))
    try:
        with pytest.raises(RuntimeFailure):
            box.run("true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert box.run("true").ok


def test_a_program_that_cannot_be_bounded_does_not_run(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(group: object, pid: int) -> None:
        raise PermissionError("no")

    class Shut:
        enter, remove = refused, lambda self: None
        killed, peak, cpu_s = lambda self: False, lambda self: None, lambda self: None

    monkeypatch.setattr("environments.runtimes.sandbox.cgroup.make", lambda memory: Shut())
    with pytest.raises(RuntimeFailure, match="no sandbox"):
        box.run("touch", "ran")
    assert not (box.runtime.work / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives users away")
def test_a_user_id_is_given_once_and_comes_back() -> None:
    one, two = users.take(), users.take()
    assert one.uid != two.uid
    users.give_back(one)
    users.give_back(two)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="we are an ordinary user: all other tests show it")
def test_an_ordinary_user_has_sandboxes_too(open_box: Callable[..., Box]) -> None:
    open_box()
    python = Path("/usr/bin/python3")
    checkout = Path(__file__).parents[3]
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, 12345, 12345)
        source = f"""
import asyncio, sys, pathlib
sys.path[:0] = {[str(checkout), *(path for path in sys.path if "site-packages" in path)]!r}
from environments.runtimes.contract import Sandbox
from environments.runtimes.sandbox import SandboxRuntime
async def main():
    box = SandboxRuntime(Sandbox(), pathlib.Path({str(folder)!r}))
    await box.start()
    ran = await box.exec(["bash", "-c", "id -u; ls /root /home; touch /usr/x; unshare -U true"])
    print(ran.stdout, ran.stderr.count("\\n"))
    bomb = await box.exec(["python3", "-c", sys.argv[1]])
    print(int(bomb.stdout) <= 64)
    await box.stop()
asyncio.run(main())
"""
        as_user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
        if not _may(as_user, python, checkout):
            pytest.skip("another user cannot read this checkout")
        ran = subprocess.run([*as_user, python, "-c", source, BOMB], capture_output=True, text=True)
        assert ran.stdout.split() == ["1000", "4", "True"], ran.stderr
    finally:
        shutil.rmtree(folder)


def _may(as_user: list[str], python: Path, checkout: Path) -> bool:
    wanted = (
        f"import sys; sys.path.append({str(checkout)!r}); sys.exit(sys.version_info[:2] != (3, 11))"
    )
    reads = subprocess.run([*as_user, "test", "-r", checkout / "environments/runtimes/sandbox.py"])
    return (
        reads.returncode == 0 and subprocess.run([*as_user, python, "-c", wanted]).returncode == 0
    )


def test_without_bubblewrap_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bwrap.shutil, "which", lambda *words, **more: None)
    bwrap.program.cache_clear()
    with pytest.raises(MissingPart, match="apt install bubblewrap"):
        SandboxRuntime(Sandbox(), tmp_path)
    bwrap.program.cache_clear()


def test_the_filter_is_whole_instructions_that_end_in_a_return() -> None:
    if denials():
        assert len(denials()) % 8 == 0 and denials()[-8:-6] == b"\x06\x00"
