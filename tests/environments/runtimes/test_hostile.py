"""Programs that mean harm, or are merely broken: each is contained, within seconds, and the reason
of its end is the right one."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.runtimes.clock import clock_of
from environments.runtimes.contract import RuntimeFailure
from environments.runtimes.door_inside import AT_ONCE
from flywheel.errors import BadRecord, ProjectError
from tests.environments.runtimes.conftest import MIB, Box

# --- taking too much ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fork_bomb_is_held_at_its_number_and_ended(box: Box) -> None:
    counting = """
import os, signal, time
made = 0
while made < 500:
    try:
        if os.fork() == 0:
            signal.pause()
        made += 1
    except OSError:
        break
print(made)
"""
    ran = box.python(counting, processes=20)
    assert ran.reason == "ok" and int(ran.stdout) <= 20
    assert box.bash("bomb() { bomb | bomb & }; bomb; sleep 60", processes=20, wall_s=1).reason in (
        *("timeout", "error"),
    )
    assert box.left() == []


@pytest.mark.slow
def test_one_process_that_takes_all_memory_is_ended_for_it(either: Box) -> None:
    ran = either.python("all = bytearray()\nwhile True: all += b'x' * 2**20", memory=100 * MIB)
    assert ran.reason == "memory"
    assert ran.peak_memory is not None and ran.peak_memory < 300 * MIB


@pytest.mark.slow
def test_memory_is_counted_over_all_processes_together(either: Box) -> None:
    source = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        some = os.urandom(25 * 2**20)
        time.sleep(60)
os.wait()
raise SystemExit(1)
"""
    assert either.python(source, memory=120 * MIB).reason == "memory"


@pytest.mark.slow
def test_what_forked_processes_share_is_counted_once(either: Box) -> None:
    source = """
import os, time
some = os.urandom(60 * 2**20)
for _ in range(6):
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
for _ in range(6): os.wait()
"""
    assert either.python(source, memory=160 * MIB).reason == "ok"


@pytest.mark.slow
def test_memory_that_no_process_shows_is_not_to_be_had(box: Box) -> None:
    source = """
import os, ctypes
try: os.memfd_create("hidden")
except OSError as error: print(error.strerror)
libc = ctypes.CDLL(None)
print(libc.shmget(0, 2**20, 0o1600), libc.semget(0, 9, 0o1600), libc.msgget(0, 0o1600))
for folder in ("/tmp", "/dev/shm"):
    try:
        for number in range(200):
            open(f"{folder}/{number}", "wb").write(bytes(2**20))
    except OSError as error: print(number < 40, error.strerror)
"""
    ran = box.python(source, memory=128 * MIB)
    full = "True No space left on device"
    assert ran.stdout.splitlines() == ["Function not implemented", "-1 -1 -1", full, full]


def test_endless_output_is_cut_and_ends_the_program(box: Box) -> None:
    ran = box.run("yes", output=10_000)
    assert ran.reason == "output" and ran.cut
    assert len(ran.stdout) < 10_100
    assert box.bash("yes >&2", output=10_000).reason == "output"


def test_a_file_over_the_limit_is_refused_to_who_writes_it(box: Box) -> None:
    ran = box.bash("exec head -c 9000000 /dev/zero > big", file=MIB)
    assert ran.reason == "output"
    assert (box.runtime.work / "big").stat().st_size == MIB


def test_many_files_that_fill_the_disk_end_the_program(either: Box) -> None:
    source = "n=0; while :; do head -c 1000000 /dev/zero > f$n; n=$((n+1)); done"
    assert either.bash(source, file=2 * MIB, workspace=8 * MIB).reason == "output"


@pytest.mark.slow
def test_many_empty_files_and_deep_folders_end_it_too(box: Box) -> None:
    source = "n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1"
    assert box.python(source).reason == "output"
    box.bash("rm -r /workspace/*")
    deep = box.python("import os\nwhile True: os.mkdir('d'); os.chdir('d')")
    assert deep.reason in ("output", "memory")  # where the kernel's memory for it is counted too


@pytest.mark.slow
@pytest.mark.parametrize("own", ["/tmp", "/dev/shm"])
def test_files_without_content_take_no_memory_without_end_either(either: Box, own: str) -> None:
    few = (
        f"import time\nfor n in range(5000):\n    open(f'{own}/{{n}}', 'w').close()\ntime.sleep(1)"
    )
    assert either.python(few).ok
    endless = f"n = 0\nwhile True:\n    open(f'{own}/{{n}}', 'w').close()\n    n += 1"
    assert either.python(endless, cpu_s=30).reason in ("output", "memory")


@pytest.mark.slow
def test_cpu_time_is_counted_over_all_processes_together(box: Box) -> None:
    source = "import os\nfor _ in range(3): os.fork()\nwhile True: pass"
    ran = box.python(source, cpu_s=0.7)
    assert ran.reason == "timeout" and ran.cpu_s is not None and ran.cpu_s >= 0.7


@pytest.mark.slow
def test_cpu_time_of_children_that_nobody_waits_for_is_counted_too(box: Box) -> None:
    source = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        while time.process_time() < 0.02: pass
        os._exit(0)
    try: os.wait()
    except OSError: pass
"""
    if clock_of(os.getpid()) is None:
        pytest.skip("this kernel lets us count no process's time")
    ran = box.python(source, cpu_s=0.7)
    assert ran.reason == "timeout" and ran.cpu_s is not None and ran.cpu_s >= 0.7


@pytest.mark.slow
def test_one_that_spins_is_ended_by_its_cpu_time(box: Box) -> None:
    ran = box.bash("trap '' XCPU; while :; do :; done", cpu_s=1)
    assert ran.reason == "timeout"


# --- not ending ---------------------------------------------------------------------------------


def test_one_that_ignores_all_signals_is_ended_in_time(box: Box) -> None:
    source = "trap '' TERM INT HUP QUIT XCPU ALRM; sleep 600 & wait; sleep 600"
    assert box.bash(source, wall_s=0.5).reason == "timeout"
    assert box.left() == []


def test_a_daemon_does_not_outlive_its_program(box: Box) -> None:
    source = "setsid -f bash -c 'while :; do date >> alive; sleep 0.05; done'; sleep 0.3; echo done"
    ran = box.bash(source)
    assert ran.reason == "ok" and ran.stdout == "done\n"
    assert box.left() == []


def test_of_a_program_that_was_given_up_nothing_is_left(box: Box) -> None:
    async def given_up(after_s: float) -> None:
        running = asyncio.create_task(box.runtime.exec(["bash", "-c", "setsid sleep 600 & wait"]))
        await asyncio.sleep(after_s)
        running.cancel()
        await asyncio.wait({running})

    before = len(os.listdir("/proc/self/fd"))
    for after_s in (0.0, 0.01, 0.03, 0.3):
        asyncio.run(given_up(after_s))
        assert box.left() == []
    assert len(os.listdir("/proc/self/fd")) == before
    groups = Path("/sys/fs/cgroup").glob(f"**/flywheel-{os.getpid()}-*")
    assert list(groups) == []


def test_a_daemon_that_holds_the_output_open_holds_nobody_up(box: Box) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("over")
"""
    ran = box.python(source)
    assert ran.reason == "ok" and ran.stdout == "over\n"
    assert ran.seconds < 60
    assert box.left() == []


def test_one_that_reads_no_input_or_closes_it_ends_as_it_likes(box: Box) -> None:
    assert box.bash("exec <&-; echo fine", stdin="x" * 5_000_000).stdout == "fine\n"
    assert box.run("cat").stdout == ""
    assert box.bash("exec >&- 2>&-; exit 3").code == 3


@pytest.mark.slow
def test_nothing_is_left_when_whoever_runs_it_is_killed(tmp_path: Path, box: Box) -> None:
    source = textwrap.dedent(f"""
        import asyncio, pathlib
        from environments.runtimes.contract import Sandbox
        from environments.runtimes.sandbox import SandboxRuntime
        async def main():
            runtime = SandboxRuntime(Sandbox(), pathlib.Path({str(tmp_path / "other")!r}))
            await runtime.start()
            print(runtime.owner, flush=True)
            await runtime.exec(["bash", "-c", "touch there; sleep 600 & setsid sleep 600"])
        asyncio.run(main())
    """)
    runner = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert runner.stdout is not None
    owner = runner.stdout.readline().strip()
    other = Box.__new__(Box)
    other.runtime = type(box.runtime)(box.runtime.config, tmp_path / "other")
    other.runtime.owner = None if owner == "None" else int(owner)
    _until(lambda: (tmp_path / "other" / "work" / "there").exists())
    assert other.left()
    runner.kill()
    runner.wait()
    runner.stdout.close()
    _until(lambda: not other.left())


# --- reaching out -------------------------------------------------------------------------------


def test_the_hosts_files_are_not_there(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    places = ["/root", "/home", "/etc/shadow", "/etc/ssh", "/var", "/sys", "/boot", "/srv", "/mnt"]
    places += [str(tmp_path), str(Path(__file__)), "/proc/1/root/root", "/proc/1/cwd/root"]
    source = f"import os\nprint([p for p in {places!r} if os.path.exists(p)])"
    assert box.python(source).stdout == "[]\n"
    assert box.bash("ls /tmp /run /opt").stdout.split() == ["/opt:", "python", "/run:", "/tmp:"]


def test_the_system_is_read_only(box: Box) -> None:
    places = "/ /usr /usr/bin /etc /dev /opt /opt/python/lib /run /proc /proc/sys/kernel"
    ran = box.bash(f"for p in {places}; do touch $p/new 2>/dev/null && echo $p; done; exit 0")
    assert ran.stdout == ""


def test_the_hosts_environment_is_not_there(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_KEYS", "very-secret")
    ran = box.bash("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'")
    said = ran.stdout + ran.stderr
    assert "HOME=/workspace" in said
    for hidden in ("FLYWHEEL", "very-secret", str(box.runtime.folder), str(Path.home())):
        assert hidden not in said


def test_there_is_no_network_not_even_the_hosts_loopback(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        hidden = socket.socket(socket.AF_UNIX)
        hidden.bind(f"\0flywheel-{os.getpid()}")
        hidden.listen()
        source = f"""
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})),
                        (socket.AF_INET, ("192.0.2.1", 80)),
                        (socket.AF_UNIX, "\\0flywheel-{os.getpid()}")):
    try:
        socket.socket(family).connect(address)
        print("reached", address)
    except OSError as error:
        print(type(error).__name__)
"""
        ran = box.python(source)
        hidden.close()
    assert ran.reason == "ok" and "reached" not in ran.stdout


def test_signals_reach_nobody_else(box: Box) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        ran = box.bash(f"kill -9 {bystander.pid} {os.getpid()}; kill -9 1; kill -9 -1; echo $?")
        assert ran.reason in ("ok", "error", "killed")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_no_process_is_traced_or_read(box: Box) -> None:
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(16, os.getppid(), 0, 0), os.strerror(ctypes.get_errno()))
print(libc.ptrace(0, 0, 0, 0), os.strerror(ctypes.get_errno()))
"""
    refused = "-1 Operation not permitted"
    assert box.python(source).stdout.splitlines() == [refused, refused]


def test_no_namespace_is_made_and_nothing_mounted(box: Box) -> None:
    ran = box.bash(
        "unshare --user true; unshare --map-root-user --mount true; mount -t tmpfs x /tmp; "
        "grep -E 'CapEff|CapBnd|NoNewPrivs|^Seccomp:' /proc/self/status"
    )
    none = "0000000000000000"
    assert ran.stdout.split()[1::2] == [none, none, "1", "2"]
    assert ran.stderr.count("unshare:") == 2 and "mount" in ran.stderr


def test_programs_are_no_root_and_gain_nothing_by_a_setuid_program(box: Box) -> None:
    ran = box.bash("id -u; su -c id root < /dev/null; cp /usr/bin/id own; chmod u+s own; ./own -u")
    first, *_, last = ran.stdout.split()
    assert first == last != "0"
    assert "uid=0" not in ran.stdout


def test_two_sandboxes_do_not_see_each_other(open_box: Callable[..., Box]) -> None:
    one, two = open_box(), open_box()
    asyncio.run(two.runtime.write("mine", "secret"))

    async def both() -> tuple[str, str]:
        slow = two.runtime.exec(["bash", "-c", "cat mine; sleep 0.5; echo still"])
        look = one.runtime.exec(
            ["bash", "-c", "kill -9 -1 2>&1; cat /proc/*/comm; find / -name mine"]
        )
        ran, seen = await asyncio.gather(slow, look)
        return ran.stdout, seen.stdout

    said, seen = asyncio.run(both())
    assert said == "secretstill\n" and "mine" not in seen
    if os.geteuid() == 0:
        assert one.runtime.owner != two.runtime.owner


def test_further_folders_are_readable_and_homes_never(
    open_box: Callable[..., Box], tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir(mode=0o755)
    (packages / "known.py").write_text("VALUE = 7")
    box = open_box(readable=[packages])
    assert box.bash(f"cat {packages}/known.py; touch {packages}/x").stdout == "VALUE = 7"
    for closed in (Path("/"), Path.home(), Path("/etc"), Path("/home"), tmp_path / "none"):
        with pytest.raises(ProjectError, match="readable"):
            open_box(readable=[closed])


def test_no_word_of_a_program_becomes_one_of_the_sandboxs_own(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    trap = f"x\0--ro-bind\0{tmp_path}\0/tmp"
    for command, env in (
        (["cat", "/tmp/secret"], {"PROMPT": trap}),
        (["cat", "/tmp/secret"], {trap: "1"}),
        (["echo", trap], {}),
        (["echo", "\ud83d"], {}),
        (["echo", "x" * 200_000], {}),
        (["echo", *["x" * 1000] * 2000], {}),
    ):
        with pytest.raises(BadRecord, match="cannot be given"):
            asyncio.run(box.runtime.exec(command, env=env))


def test_a_door_is_no_way_to_take_all_that_the_host_can_open(box: Box) -> None:
    crowd = """
import os, socket
for _ in range(2): os.fork()
held = []
for _ in range(100):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].settimeout(0.3)
    try: held[-1].connect("/run/door")
    except OSError: break
"""
    now = most = 0

    async def meets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        now -= 1

    async def all_of_it() -> None:
        async with await asyncio.start_server(meets, "127.0.0.1", 0) as server:
            door = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            before = len(os.listdir("/proc/self/fd"))
            assert (await box.runtime.exec(["python3", "-c", crowd], door=door)).ok
            await asyncio.sleep(0.1)
            assert len(os.listdir("/proc/self/fd")) <= before + 4

    asyncio.run(all_of_it())
    assert 0 < most <= 2 * AT_ONCE  # a closed one may still be counted


# --- traps left in the workspace ----------------------------------------------------------------


def test_no_path_leads_out_of_the_workspace(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    box.bash(
        f"ln -s {tmp_path}/secret out; ln -s {tmp_path} folder; ln -s /etc/passwd pw; mkfifo p"
    )
    for path in ("../etc/passwd", "/etc/passwd", "a/../../x", "", ".", "x\0y", "none/of/it"):
        with pytest.raises(BadRecord):
            asyncio.run(box.runtime.read(path))
    for path in ("out", "folder/secret", "pw", "p"):
        with pytest.raises(BadRecord):
            asyncio.run(box.runtime.read(path))
    with pytest.raises(BadRecord):
        asyncio.run(box.runtime.write("folder/new", "x"))
    with pytest.raises(BadRecord):
        asyncio.run(box.runtime.write("../new", "x"))
    asyncio.run(box.runtime.write("out", "replaced"))
    asyncio.run(box.runtime.write("p", "no pipe any more"))
    assert (tmp_path / "secret").read_text() == "secret"
    assert asyncio.run(box.runtime.read("p")) == b"no pipe any more"
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_files_that_change_while_they_are_read_are_their_programs_doing(box: Box) -> None:
    swapping = """
import os, shutil, time
ends = time.time() + 2
while time.time() < ends:
    open("new", "wb").write(bytes(100_000)); os.rename("new", "f")
    os.truncate("f", 10)
    os.mkfifo("new"); os.rename("new", "f")
    os.symlink("/etc/passwd", "new"); os.rename("new", "f")
    os.makedirs("d", exist_ok=True); shutil.rmtree("d", ignore_errors=True)
"""

    async def all_of_it() -> None:
        running = asyncio.create_task(box.runtime.exec(["python3", "-c", swapping]))
        while not running.done():
            with contextlib.suppress(BadRecord):
                assert set(await box.runtime.read("f")) <= {0}
            with contextlib.suppress(BadRecord):
                await box.runtime.write("d/x", "mine")
            with contextlib.suppress(BadRecord):
                await box.runtime.snapshot()
            await asyncio.sleep(0)
        assert running.result().ok

    asyncio.run(all_of_it())


def test_names_of_all_kinds_survive_a_snapshot(box: Box) -> None:
    names = ["new\nline", "not \udcff utf-8", " space ", "-rf", "back\\slash", "😀", "x" * 255]
    for name in names:
        (box.runtime.work / name).write_text(name, errors="surrogateescape")
    kept = asyncio.run(box.runtime.snapshot())
    asyncio.run(box.runtime.restore(kept))
    assert sorted(os.listdir(box.runtime.work)) == sorted(names)


def test_a_file_larger_than_asked_for_is_not_read(box: Box) -> None:
    box.bash("truncate -s 20M sparse")
    with pytest.raises(BadRecord, match="more than"):
        asyncio.run(box.runtime.read("sparse"))


@pytest.mark.slow
def test_what_resists_is_removed_all_the_same(box: Box) -> None:
    box.bash("mkdir -p shut/in; touch shut/in/x; chmod 000 shut/in shut")
    deep = os.open(box.runtime.work, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    asyncio.run(box.runtime.stop())
    assert not box.runtime.work.exists()


def test_a_snapshot_takes_no_traps_along(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    box.bash(
        f"mkdir d; echo text > d/f; chmod 750 d/f; ln -s f d/inner; ln -s {tmp_path}/secret out; "
        "ln -s ../../x up; mkfifo pipe"
    )
    with tarfile.open(asyncio.run(box.runtime.snapshot())) as tar:
        assert tar.getnames() == ["d", "d/f", "d/inner"]
    box.bash("rm -r d; touch later")
    asyncio.run(box.runtime.restore(box.runtime.folder / "snapshot.tar"))
    ran = box.bash("cat d/inner; stat -c %a d/f; ls; echo more >> d/f")
    assert ran.stdout.split() == ["text", "750", "d"] and ran.ok


def test_a_workspace_too_large_or_too_deep_gives_no_snapshot(open_box: Callable[..., Box]) -> None:
    box = open_box(workspace=MIB)
    large, deep = box.runtime.work / "f", box.runtime.work.joinpath(*"d" * 100)
    for trap in (lambda: large.write_bytes(bytes(2 * MIB)), lambda: deep.mkdir(parents=True)):
        large.unlink(missing_ok=True)
        trap()
        with pytest.raises(BadRecord, match="holds more than"):
            asyncio.run(box.runtime.snapshot())
    assert not (box.runtime.folder / "snapshot.tar").exists()


def _entry(name: str, **fields: object) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry


TRAPS = {
    "up": [_entry("../out")],
    "absolute": [_entry("/tmp/out")],
    "link out": [_entry("l", type=tarfile.SYMTYPE, linkname="/etc")],
    "link up": [_entry("d/l", type=tarfile.SYMTYPE, linkname="../../x")],
    "through a link": [_entry("l", type=tarfile.SYMTYPE, linkname="d"), _entry("l/f")],
    "hard link": [_entry("f"), _entry("h", type=tarfile.LNKTYPE, linkname="f")],
    "device": [_entry("dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "pipe": [_entry("pipe", type=tarfile.FIFOTYPE)],
    "twice": [_entry("f"), _entry("f")],
    "deep": [_entry("/".join("d" * 100))],
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_hostile_archive_changes_nothing(box: Box, tmp_path: Path, trap: str) -> None:
    asyncio.run(box.runtime.write("kept", "as it was"))
    bad = tmp_path / "bad.tar"
    with tarfile.open(bad, "w") as tar:
        for entry in TRAPS[trap]:
            tar.addfile(entry)
    with pytest.raises(BadRecord):
        asyncio.run(box.runtime.restore(bad))
    assert asyncio.run(box.runtime.read("kept")) == b"as it was"
    assert sorted(path.name for path in box.runtime.folder.iterdir()) == ["etc", "work"]


def test_an_archive_that_swells_is_refused(box: Box, tmp_path: Path) -> None:
    sparse, packed, lying = (tmp_path / name for name in ("sparse.tar", "bomb.tgz", "lying.tar"))
    with open(sparse, "wb") as file:
        file.write(_entry("a", size=300 * MIB).tobuf())
        file.truncate(400 * MIB)
    with tarfile.open(packed, "w:gz") as tar:
        tar.addfile(_entry("a"))
    lying.write_bytes(_entry("a", size=5 * MIB).tobuf() + b"short")
    for bad in (sparse, packed, lying):
        with pytest.raises(BadRecord):
            asyncio.run(box.runtime.restore(bad))
    assert list(box.runtime.work.iterdir()) == []


def test_a_full_machine_is_its_own_fault_not_the_programs(box: Box) -> None:
    box.runtime._program = "/usr/bin/false"
    with pytest.raises(RuntimeFailure, match="no sandbox"):
        box.run("true")


def _until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)
