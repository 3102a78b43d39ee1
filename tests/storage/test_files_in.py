"""Files and folders: compression told by content, cuts, bombs, loops, what is no file."""

import gzip
import os
import zlib
from pathlib import Path

import pytest
import zstandard

from flywheel.errors import BadRecord
from storage import files_in
from storage.files_in import blocks, files_under

TEXT = b"".join(b'{"n": %d}\n' % number for number in range(50_000))


def drained(path: Path) -> tuple[bytes, str | None]:
    found = []
    try:
        for block in blocks(path):
            found.append(block)
    except BadRecord as error:
        return b"".join(found), error.reason
    return b"".join(found), None


def test_compression_is_told_by_content_not_by_name(tmp_path: Path):
    for name, data in {
        "plain.gz": TEXT,
        "gzip": gzip.compress(TEXT),
        "two-members": gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:]) + b"\0" * 512,
        "zstd.json": zstandard.compress(TEXT),
        "two-frames": zstandard.compress(TEXT[:100]) + zstandard.compress(TEXT[100:]),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert drained(tmp_path / name) == (TEXT, None), name


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_cut_file_gives_what_came_before_and_says_so(tmp_path: Path, pack):
    path = tmp_path / "cut"
    path.write_bytes(pack(os.urandom(300_000) + TEXT)[:250_000])
    data, reason = drained(path)
    assert "is cut off" in reason
    if pack is gzip.compress:
        assert len(data) > 100_000


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_damaged_file_says_so(tmp_path: Path, pack):
    packed = bytearray(pack(TEXT))
    packed[20:60] = b"\xff" * 40
    path = tmp_path / "damaged"
    path.write_bytes(packed)
    assert "is damaged" in (drained(path)[1] or "") or "is cut off" in (drained(path)[1] or "")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(files_in, "FREE_EXPANSION", 8 << 20)
    zeros = b"\0" * (1 << 20)
    path = tmp_path / "bomb"
    with path.open("wb") as file:
        if kind == "gzip":
            packer = zlib.compressobj(9, wbits=31)
            file.write(b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush())
        else:
            with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as writer:
                for _ in range(64):
                    writer.write(zeros)
    total = 0
    with pytest.raises(BadRecord, match="expands to over"):
        for block in blocks(path):
            total += len(block)
            assert len(block) <= 1 << 20
    assert total < 32 << 20


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"PAR1", "Parquet"),
        (b"PK\x03\x04", "zip"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"\xff\xfe{", "UTF-16"),
    ],
)
def test_other_kinds_of_file_are_named(tmp_path: Path, head: bytes, what: str):
    path = tmp_path / "file"
    path.write_bytes(head + b"\0" * 100)
    assert what in (drained(path)[1] or "")


def test_folders_are_walked_in_order_once_and_without_hidden_files(tmp_path: Path):
    for name in ("b.json", "a/c.json", "a/.hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    found = list(files_under(tmp_path))
    assert [one.path.name for one in found if one.problem is None] == ["c.json", "b.json"]
    problems = {one.path.name: one.problem for one in found if one.problem}
    assert set(problems) == {"self", "gone", "pipe"}
    assert problems["pipe"] == "is neither a file nor a folder"
    assert "cannot be read" in problems["gone"]


def test_a_missing_path_and_an_empty_folder_are_problems(tmp_path: Path):
    (missing,) = files_under(tmp_path / "nothing")
    assert missing.problem == "cannot be read: No such file or directory"
    (empty,) = files_under(tmp_path)
    assert empty.problem == "is an empty folder"
