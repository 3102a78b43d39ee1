"""Every leaf of every shared file is held by what was read of it, or stands in the list of what was
not mapped. Skipped without ../shared."""

from pathlib import Path

import pytest

from flywheel.ids import digest_bytes
from storage.chunk import read_chunk
from storage.files_in import blocks
from storage.json_in import decode
from storage.rows_in import Row, chunks, rows
from storage.whole import joined
from storage.zip_in import is_zip, zip_files
from tests.storage.formats.conftest import SHARED
from tests.storage.formats.leaves import Found, leaves

FOLDERS = sorted(path.name for path in SHARED.glob("*") if path.is_dir())
_LIMIT = 1 << 26


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_field_of_a_real_file_is_lost_in_silence(shared: Path, folder: str):
    lost, walked = [], 0
    for path in sorted((shared / folder).iterdir()):
        for row in _rows(path):
            kept: dict[str, bytes] = {}

            def keep(data: bytes, kept: dict[str, bytes] = kept) -> str:
                kept[digest_bytes(data)] = data
                return digest_bytes(data)

            read = read_chunk([row], "0" * 32, "p", "auto", keep)
            assert all(error.reason for _, error, _ in read.rejects)
            if row.problem or (read.rejects and not read.records):
                continue  # quarantined whole, with its reason
            found, seen = Found(read, kept), set()
            for leaf in leaves(decode(row.data)):
                walked += 1
                if leaf not in seen and not found.has(*leaf):
                    lost.append((path.name, *leaf))
                seen.add(leaf)
    assert not lost, lost[:20]
    assert walked


def test_a_lost_leaf_is_noticed():
    row = {"request": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
           "response": {"id": "r", "object": "chat.completion", "created": 1700000000,
                        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yo"},
                                     "finish_reason": "stop"}]}}  # fmt: skip
    import msgspec

    read = read_chunk([Row(1, msgspec.json.encode(row))], "0" * 32, "p", "auto", digest_bytes)
    found = Found(read, {})
    assert all(found.has(*leaf) for leaf in leaves(row))
    assert not found.has("request.seed", 4711)
    assert not found.has("request.note", "said by nobody")


def _rows(path: Path) -> list[Row]:
    found = zip_files(path, _LIMIT) if is_zip(path) else [("", rows(blocks(path), _LIMIT))]
    return [
        row
        for _, inner in found
        for chunk in chunks(joined(iter(inner), "auto", _LIMIT))
        for row in chunk
    ]
