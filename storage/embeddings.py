"""Texts as the signs of their embeddings: near in meaning is near in bits.

Texts enter; leaves for each a fixed number of bytes, made of the vector that an OpenAI-compatible
endpoint gives: its signs along 2048 directions (Charikar, "Similarity Estimation Techniques from
Rounding Algorithms", 2002). Kept by content, so that nothing is asked twice and a curation that is
repeated gets what the first one got. A key is a digest: no text is kept.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.errors import FlywheelError, UsageError
from flywheel.ids import digest
from flywheel.settings import secret

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PLACES = 128
"""Of 16 bits: an angle is known to 1.2 degrees, so a cosine of 0.95 to 0.007."""
MOST_CHARACTERS = 8_000
"""Of a text that are sent: its first ones."""
MOST_KEPT = 2_000_000
"""About 0.7 GB; the oldest go."""
_AT_ONCE = 64
_TABLE = "CREATE TABLE IF NOT EXISTS signs (key TEXT PRIMARY KEY, signs BLOB NOT NULL)"


class Embeddings:
    """One model of one endpoint."""

    def __init__(self, url: str, model: str, key: str | None, kept: Path | None) -> None:
        """
        Args:
            url: up to and with its /v1.
            key: the environment variable that has the endpoint's key. None = it takes none.
            kept: the file of what was asked before. None = nothing is kept.

        Raises:
            UsageError: the variable is not set.
        """
        self._url, self._model, self._kept = url.rstrip("/"), model, kept
        self._headers = {}
        if key is not None:
            if not (value := secret(key)):
                raise UsageError(f"near_duplicates: the variable {key} has no key for {url}")
            self._headers = {"Authorization": f"Bearer {value}"}
        self._key = key or ""

    def signs(self, texts: Sequence[str]) -> list[bytes | None]:
        """Parallel to `texts`; None = there is nothing in it.

        Raises:
            FlywheelError: the endpoint cannot be asked, or gives something else.
        """
        cut = [text[:MOST_CHARACTERS] for text in texts]
        keys = [digest(self._url, self._model, text) if text.strip() else "" for text in cut]
        wanted = {key: text for key, text in zip(keys, cut, strict=True) if key}
        with closing(sqlite3.connect(self._kept or ":memory:", timeout=60)) as database:
            database.execute(_TABLE)
            found = _known(database, list(wanted))
            missing = sorted(wanted.keys() - found.keys())
            for start in range(0, len(missing), _AT_ONCE):
                some = missing[start : start + _AT_ONCE]
                vectors = self._asked([wanted[key] for key in some])
                made = dict(zip(some, _signs(vectors), strict=True))
                found |= made
                with database:
                    database.executemany("INSERT OR REPLACE INTO signs VALUES (?, ?)", made.items())
            with database:
                database.execute(
                    "DELETE FROM signs WHERE rowid <= (SELECT max(rowid) FROM signs) - ?",
                    [MOST_KEPT],
                )
        return [found.get(key) for key in keys]

    def _asked(self, texts: list[str]) -> "NDArray[np.float64]":
        import numpy as np

        from storage.pull.asking import Server

        with Server(self._url, self._headers, keys=self._key) as server:
            answer = server.post("/embeddings", {"model": self._model, "input": texts})
        try:
            given = sorted(answer["data"], key=lambda one: one["index"])
            vectors = np.array([one["embedding"] for one in given], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise FlywheelError(f"{self._url}/embeddings gave no vectors: {error!r}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise FlywheelError(
                f"{self._url}/embeddings gave {vectors.shape} for {len(texts)} texts"
            )
        return vectors


def forget_signs(kept: Path) -> None:
    """Removes all that is kept: signs of an erased text tell which texts are like it, and all can
    be asked for again."""
    for path in (kept, kept.with_name(f"{kept.name}-wal"), kept.with_name(f"{kept.name}-shm")):
        path.unlink(missing_ok=True)


def cosine(one: "NDArray[np.uint16]", other: "NDArray[np.uint16]") -> "NDArray[np.float64]":
    """Of vectors, by their signs [..., PLACES]: of an angle a share a / pi of the signs differ."""
    import numpy as np

    differ = np.bitwise_count(one ^ other).sum(axis=-1, dtype=np.int64)
    found: NDArray[np.float64] = np.cos(np.pi * differ / (16 * PLACES))
    return found


def _known(database: sqlite3.Connection, keys: list[str]) -> dict[str, bytes]:
    found: dict[str, Any] = {}
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        asked = ", ".join("?" * len(some))
        found |= database.execute(f"SELECT key, signs FROM signs WHERE key IN ({asked})", some)
    return found


def _signs(vectors: "NDArray[np.float64]") -> list[bytes]:
    import numpy as np

    above = vectors @ _directions(vectors.shape[1]) > 0
    return [row.tobytes() for row in np.packbits(above, axis=1)]


def _directions(dimensions: int) -> "NDArray[np.float64]":
    """[dimensions, signs] of 1 and -1, the same in any process."""
    import numpy as np

    from storage.word_hashes import mixed

    count = dimensions * 16 * PLACES
    bits = np.unpackbits(mixed(np.arange(1, count // 64 + 1, dtype=np.uint64)).view(np.uint8))
    found: NDArray[np.float64] = bits.reshape(dimensions, 16 * PLACES) * np.float64(2) - 1
    return found
