"""What the formats' tests share: a context whose raw store is a dictionary, and the real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flywheel.ids import digest_bytes
from storage.chunk import ChunkRead, read_chunk
from storage.files_in import blocks
from storage.formats import FORMATS
from storage.formats.parsed import Context, Parsed
from storage.rows_in import chunks, rows
from storage.whole import joined
from storage.zip_in import is_zip, zip_files

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "traces"


@pytest.fixture
def kept() -> dict[str, bytes]:
    """The raw store."""
    return {}


@pytest.fixture
def read(kept: dict[str, bytes]) -> Callable[[str, Any], Parsed]:
    """Reads one row by a named format, which must recognise it."""

    def keep(data: bytes) -> str:
        kept[digest_bytes(data)] = data
        return digest_bytes(data)

    def one(name: str, row: Any) -> Parsed:
        assert next(key for key, format in FORMATS.items() if format.recognise(row)) == name
        size = len(json.dumps(row).encode("utf-8", "surrogatepass"))
        return FORMATS[name].read(row, Context("p", keep, "raw", size))

    return one


@pytest.fixture
def shared() -> Path:
    """The folder of real traces; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/traces beside this checkout")
    return SHARED


def read_file(path: Path) -> ChunkRead:
    """What the importer would hand to the inbox of one file, without a store."""
    found = zip_files(path, 1 << 26) if is_zip(path) else [("", rows(blocks(path), 1 << 26))]
    read = ChunkRead()
    for _, inner in found:
        for chunk in chunks(joined(iter(inner), "auto", 1 << 26)):
            one = read_chunk(chunk, "0" * 32, "p", "auto", digest_bytes)
            read.records += one.records
            read.rejects += one.rejects
            read.formats.update(one.formats)
            read.unmapped.update(one.unmapped)
    return read
