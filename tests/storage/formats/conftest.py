"""What the formats' tests share: a context whose raw store is a dictionary, and the real files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flywheel.ids import digest_bytes
from storage.formats import FORMATS
from storage.formats.parsed import Context, Parsed

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
