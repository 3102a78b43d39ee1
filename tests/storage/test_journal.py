import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from flywheel.errors import Full
from flywheel.home import Home
from storage import journal, queries
from storage.committer import commit
from storage.envelope import encode
from storage.journal import Journal
from tests.storage.store_parts import killed_at, run_in_child, spoken


def count(home: Home) -> int:
    return queries.counts(home, "shop")["traces"]


def line(number: int) -> bytes:
    return encode(spoken(str(number), question=f"question {number}"))


def test_a_commit_takes_in_what_a_living_journal_holds_and_each_line_once(home: Home) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    assert commit(home).traces == 1
    assert commit(home).segments == 0
    gateway.append(line(2))
    report = commit(home)
    assert (report.traces, report.duplicates) == (1, 0)
    assert len(journal.files(home)) == 1
    gateway.close()
    commit(home)
    assert journal.files(home) == []
    assert count(home) == 2


def test_nothing_that_was_appended_is_lost_to_a_kill(home: Home) -> None:
    def serve() -> None:
        gateway = Journal(home)
        for number in range(50):
            gateway.append(line(number))
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(serve) == -signal.SIGKILL
    assert commit(home).traces == 50
    assert journal.files(home) == []


def test_a_torn_last_line_goes_to_quarantine_once_its_writer_is_gone(home: Home) -> None:
    killed_at("store.journal_written", lambda: Journal(home).append(line(1)))
    (path,) = journal.files(home)
    with path.open("ab") as file:
        file.write(journal.frame(line(2))[:200])
    report = commit(home)
    assert (report.traces, report.quarantined) == (1, 1)
    kept = sorted(home.quarantine.iterdir())
    assert [one.suffix for one in kept] == ["", ".why"]
    assert "cut" in kept[1].read_text()
    assert journal.files(home) == []


def test_an_unfinished_line_of_a_living_writer_waits(home: Home) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    (path,) = journal.files(home)
    whole = journal.frame(line(2))
    with path.open("ab") as file:
        file.write(whole[:100])
        file.flush()
        report = commit(home)
        assert (report.traces, report.quarantined) == (1, 0)
        file.write(whole[100:])
    assert commit(home).traces == 1
    gateway.close()


def test_damage_in_the_middle_costs_only_its_own_line(home: Home) -> None:
    gateway = Journal(home)
    for number in range(3):
        gateway.append(line(number))
    gateway.close()
    (path,) = journal.files(home)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    report = commit(home)
    assert (report.traces, report.quarantined) == (2, 1)


@pytest.mark.parametrize("place", ["store.before_commit", "store.after_commit"])
def test_a_commit_killed_at_any_step_takes_each_line_once(home: Home, place: str) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    gateway.append(line(2))
    killed_at(place, lambda: commit(home))
    gateway.append(line(3))
    gateway.close()
    commit(home)
    assert count(home) == 3
    assert commit(home).duplicates == 0
    assert journal.files(home) == []


def test_files_are_rotated_by_size_and_none_is_lost(home: Home) -> None:
    gateway = Journal(home, rotate_bytes=4_000)
    for number in range(30):
        gateway.append(line(number))
    assert len(journal.files(home)) > 3
    gateway.synced().result(10)
    commit(home)
    assert len(journal.files(home)) == 1
    gateway.close()
    commit(home)
    assert count(home) == 30


def test_threads_may_append_together(home: Home) -> None:
    gateway = Journal(home, rotate_bytes=20_000)

    def work(first: int) -> None:
        for number in range(first, first + 50):
            gateway.append(line(number))

    threads = [threading.Thread(target=work, args=(100 * one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gateway.close()
    assert commit(home).traces == 200


def test_a_forked_child_writes_to_a_file_of_its_own(home: Home) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    assert run_in_child(lambda: gateway.append(line(2))) == 0
    gateway.append(line(3))
    assert len(journal.files(home)) == 2
    gateway.close()
    assert commit(home).traces == 3


def test_a_full_disk_leaves_no_half_line_behind(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, write = Journal(home), os.write
    gateway.append(line(1))

    def half(handle: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[: len(data) - 50])

    with monkeypatch.context() as patch, pytest.raises(Full):
        patch.setattr(os, "write", half)
        gateway.append(line(2))
    gateway.append(line(3))
    gateway.close()
    report = commit(home)
    assert (report.traces, report.quarantined) == (2, 0)


def test_those_who_wait_for_the_disk_share_one_sync(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, synced, sync = Journal(home), [], os.fdatasync
    first = threading.Event()

    def slow(handle: int) -> None:
        synced.append(handle)
        first.wait(10)
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", slow)
    gateway.append(line(1))
    one = gateway.synced()
    while not synced:
        time.sleep(0.001)
    waiting = []
    for number in range(2, 10):
        gateway.append(line(number))
        waiting.append(gateway.synced())
    assert not any(future.done() for future in (one, *waiting))
    first.set()
    for future in (one, *waiting):
        future.result(10)
    assert len(synced) == 2
    gateway.synced().result(10)
    assert gateway.behind_s == 0
    gateway.close()


def test_a_disk_that_fails_is_said_to_who_waits_and_to_the_next_and_then_a_new_file_is_begun(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    gateway.synced().result(10)

    def broken(handle: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        gateway.append(line(2))
        with pytest.raises(OSError, match="broken"):
            gateway.synced().result(10)
    with pytest.raises(OSError, match="broken"):
        gateway.append(line(3))
    gateway.append(line(3))
    gateway.synced().result(10)
    assert len(journal.files(home)) == 1 + 1
    gateway.close()
    assert commit(home).traces == 3


def test_a_line_nobody_waits_for_is_synced_all_the_same(home: Home) -> None:
    gateway = Journal(home)
    gateway.append(line(1))
    until = time.monotonic() + 10
    while gateway.behind_s and time.monotonic() < until:
        time.sleep(0.01)
    assert gateway.behind_s == 0
    gateway.close()


def test_a_line_that_is_no_record_goes_to_quarantine_and_the_rest_goes_on(home: Home) -> None:
    gateway = Journal(home)
    for bad in (b"{}", b'["trace",{}]', b'["nothing",{}]', b"\xff\xfe", b"", b'["trace",[[[['):
        gateway.append(bad)
    gateway.append(line(1))
    gateway.close()
    report = commit(home)
    assert (report.traces, report.quarantined) == (1, 6)


def test_a_whole_empty_journal_goes(home: Home) -> None:
    home.journal.mkdir(parents=True)
    Path(home.journal / "01.journal").touch()
    commit(home)
    assert journal.files(home) == []
