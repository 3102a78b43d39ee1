"""Raw bytes as they came, compressed, each once under the digest of its content.

Bytes enter; a digest leaves, and brings them back. What is there under a digest is whole.
"""

import re
from pathlib import Path

import zstandard

from flywheel import durable
from flywheel.errors import CorruptFile
from flywheel.home import Home
from flywheel.ids import digest_bytes
from storage.mirror import brought

_PLACE = re.compile(r"([0-9]{1,18})\+([0-9]{1,18})")


def part(place: str, size: int) -> tuple[int, int]:
    """Offset and length of what a key's `OFFSET+LENGTH` names among `size` bytes; "" = all. What
    leads out of them names nothing: other machines say it too."""
    if not place:
        return 0, size
    named = _PLACE.fullmatch(place)
    offset, length = (int(named[1]), int(named[2])) if named else (0, 0)
    return (offset, length) if offset + length <= size else (0, 0)


class RawStore:
    def __init__(self, home: Home) -> None:
        self._home = home

    def put(self, data: bytes, *, key: str | None = None) -> str:
        """Keeps `data`, durably; the same bytes are kept once.

        Args:
            key: their digest, where it is known.

        Raises:
            Full: no space left.
        """
        key = digest_bytes(data) if key is None else key
        path = self._path(key)
        if not path.exists():
            packer = zstandard.ZstdCompressor(level=1, write_checksum=True)
            durable.write(path, packer.compress(data))
        return key

    def get(self, key: str) -> bytes:
        """
        Raises:
            KeyError: nothing is kept under `key`.
            CorruptFile: what is kept is not what was put.
        """
        path = self._path(key)
        if not path.exists() and self._home.lake is not None:
            brought(self._home, path)
        try:
            packed = path.read_bytes()
        except FileNotFoundError:
            raise KeyError(f"no raw bytes are kept under {key}") from None
        try:
            data = zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError as error:
            raise CorruptFile(f"{path} cannot be unpacked: {error}") from error
        if digest_bytes(data) != key:
            raise CorruptFile(f"{path} holds other bytes than its name says")
        return data

    def has(self, key: str) -> bool:
        return self._path(key).exists()

    def drop(self, key: str) -> int:
        """Removes it and returns how many bytes it had; 0 = it was not there."""
        path = self._path(key)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return size

    def _path(self, key: str) -> Path:
        """
        Raises:
            KeyError: `key` is no digest, so that no path leads out of the store.
        """
        if len(key) != 32 or set(key) - set("0123456789abcdef"):
            raise KeyError(f"{key!r} is no digest of raw bytes")
        return self._home.raw / key[:2] / f"{key}.zst"
