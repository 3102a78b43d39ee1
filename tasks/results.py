"""Where Prefect keeps what tasks returned: under the home, durably, so a kill leaves no torn one.

Tasks return ids, paths, digests and counts, never records, so nothing here escapes an erasure.
"""

from pathlib import Path
from typing import Any

from prefect.filesystems import LocalFileSystem

from flywheel import durable
from flywheel.settings import load


class HomeResults(LocalFileSystem):
    """Results of tasks, in `prefect/results` of whichever home is set when it is used."""

    _block_type_name = "Flywheel Home Results"
    _block_type_slug = "flywheel-home-results"

    def _resolve_path(self, path: str | None, validate: bool = True) -> Path:
        base = load().at().prefect / "results"
        return base if path is None else base / path

    def write_path(self, path: str, content: bytes, **_: Any) -> str:
        target = self._resolve_path(path)
        durable.write(target, content)
        return str(target)

    async def awrite_path(self, path: str, content: bytes, **_: Any) -> str:
        return self.write_path(path, content)
