"""Prefect on a real PostgreSQL instead of SQLite: one setting, and runs are recorded there."""

import asyncio
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.calling import FLYWHEEL, call, surroundings
from tests.postgres import HERE
from tests.postgres import postgres as postgres

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HERE, reason="no PostgreSQL here")]
SORTING = Path(__file__).resolve().parents[1] / "sorting"


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
