"""Prefect on a real PostgreSQL instead of SQLite: one setting, and runs are recorded there."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.calling import FLYWHEEL, call, surroundings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("initdb") and shutil.which("postgres")), reason="no PostgreSQL here"
    ),
]
SORTING = Path(__file__).resolve().parents[1] / "sorting"
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


async def told(url: str, query: str) -> Any:
    import asyncpg

    connection = await asyncpg.connect(url.replace("+asyncpg", ""))
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def test_prefect_runs_on_postgres_by_one_setting(postgres: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    setting = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres}
    project = tmp_path / "sorting"
    project.mkdir()
    for name in ("flywheel.toml", "environment.py"):
        shutil.copy(SORTING / name, project)
    off = (
        '\n[schedule]\ningest = 3\ngrade = "off"\ncurate = "off"\nturn = "off"\nregistry = "off"\n'
    )
    file = project / "flywheel.toml"
    file.write_text(file.read_text() + off)
    with subprocess.Popen(
        [*FLYWHEEL, "prefect", "--port", "0", "--json"],
        env=surroundings(home, PREFECT_WORKER_QUERY_SECONDS="1", **setting),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as prefect:
        try:
            assert prefect.stdout
            said = json.loads(prefect.stdout.readline())
            deployed = call("deploy", project, "--json", home=home)
            assert deployed.object()["server"] == said["api_url"], deployed.err
            done = "SELECT count(*) FROM flow_run WHERE state_name = 'Completed'"
            until = time.monotonic() + 240
            while not asyncio.run(told(postgres, done)):
                assert time.monotonic() < until, (home / "logs" / "prefect.log").read_text()[-2000:]
                time.sleep(0.5)
            told_name = asyncio.run(told(postgres, "SELECT name FROM flow_run WHERE run_count = 1"))
            assert told_name.startswith("ingest of sorting, 20")
        finally:
            prefect.terminate()
    assert not (home / "prefect" / "prefect.db").exists()
