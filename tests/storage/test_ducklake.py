"""The store on DuckLake: what attaches it, its commit lock on a real PostgreSQL, and what is said
where its extensions are not to be had. Where they are, the store's own work runs on it."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flywheel.errors import Busy, FlywheelError, MissingPart, UsageError
from flywheel.home import Home
from storage import ducklake, queries
from storage.committer import commit
from storage.inbox import Inbox
from tests.postgres import HERE
from tests.postgres import postgres as postgres
from tests.storage.store_parts import spoken

needs_postgres = pytest.mark.skipif(not HERE, reason="no PostgreSQL here")


def test_what_attaches_it_names_catalogue_and_data(home: Home) -> None:
    there = replace(home, lake="s3://bucket/it's", catalog="postgresql://me@host/db")
    assert ducklake.extensions(there) == ("ducklake", "postgres", "httpfs", "aws")
    secret, attach, use = ducklake.statements(there)
    assert "credential_chain" in secret and use == "USE store"
    assert attach == (
        "ATTACH 'ducklake:postgres:postgresql://me@host/db' AS store "
        "(DATA_PATH 's3://bucket/it''s/ducklake/')"
    )
    with pytest.raises(UsageError, match="FLYWHEEL_LAKE"):
        ducklake.statements(replace(there, lake=None))


def test_a_catalogue_that_is_not_there_is_said(home: Home) -> None:
    there = replace(home, lake=str(home.root / "lake"), catalog="postgresql://me@127.0.0.1:1/db")
    Inbox(there).append([spoken("a")])
    with pytest.raises(FlywheelError, match="FLYWHEEL_CATALOG"):
        commit(there)
    assert Inbox(there).pending(), "what waits still waits"


@pytest.fixture
def catalogued(home: Home, postgres: str, tmp_path: Path) -> Iterator[Home]:
    yield replace(home, lake=str(tmp_path / "lake"), catalog=postgres.replace("+asyncpg", ""))


@pytest.mark.slow
@needs_postgres
def test_one_machine_commits_at_a_time(catalogued: Home) -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ducklake.committing(catalogued, wait_s=5):
            held.set()
            over.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with pytest.raises(Busy, match="another machine"), ducklake.committing(catalogued, wait_s=0.3):
        pass
    over.set()
    other.join()
    with ducklake.committing(catalogued, wait_s=5):
        pass


@pytest.mark.slow
@needs_postgres
def test_the_store_works_on_it_where_its_extensions_are_to_be_had(catalogued: Home) -> None:
    Inbox(catalogued).append([spoken("a")])
    try:
        commit(catalogued)
    except MissingPart as missing:
        assert "ducklake" in str(missing) and Inbox(catalogued).pending()
        pytest.skip(f"no DuckLake here: {missing}")
    Inbox(catalogued).append([spoken("a"), spoken("b", answer="b")])
    assert commit(catalogued).duplicates == 1
    found = [one.external_id for batch in queries.traces(catalogued) for one in batch]
    assert sorted(found) == ["a", "b"]
