"""A real PostgreSQL for the tests that need one."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = bool(shutil.which("initdb") and shutil.which("postgres"))
USER = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}
"""PostgreSQL runs as no superuser of the machine."""


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL, as Prefect takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with folder_for_all() as folder:
        data = str(folder / "data")
        made = subprocess.run(
            ["initdb", "-D", data, "-U", "prefect", "--auth=trust", "--no-sync", "-E", "UTF8"],
            capture_output=True, text=True, cwd=folder, **USER,  # type: ignore[call-overload]
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k", str(folder)]
        with subprocess.Popen(
            ["postgres", "-D", data, "-p", str(port), *options], cwd=folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **USER,  # type: ignore[call-overload]
        ) as server:  # fmt: skip
            try:
                asyncio.run(answers(port))
                yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
            finally:
                server.terminate()


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder that PostgreSQL's user may write to; pytest's own are for their owner only."""
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as folder:
        if USER:
            shutil.chown(folder, **USER)
        yield Path(folder)


async def answers(port: int) -> None:
    import asyncpg

    until = time.monotonic() + 60
    while True:
        try:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=port, user="prefect", database="postgres"
            )
        except (OSError, asyncpg.PostgresError):
            assert time.monotonic() < until, "PostgreSQL did not start"
            await asyncio.sleep(0.1)
        else:
            await connection.close()
            return
