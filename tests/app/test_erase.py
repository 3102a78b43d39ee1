"""`flywheel erase`: what would go, what went out of the home and its lake, and how it is told."""

from pathlib import Path

import pytest

from flywheel.home import Home
from storage.committer import commit
from storage.inbox import Inbox
from storage.publish import publish
from storage.queries import traces
from tests.app.calling import call
from tests.storage.store_parts import spoken


@pytest.mark.slow
def test_what_would_go_is_told_and_then_goes_from_the_lake_too(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    home = Home(tmp_path / "home", lake=str(lake))
    Inbox(home).append([
        spoken("a", question="a question of ada about parcels", user="ada"),
        spoken("b", question="a question of bob about letters", user="bob"),
    ])  # fmt: skip
    commit(home)
    publish(home)
    parts = set(lake.rglob("*.parquet"))
    given = {"home": home.root, "FLYWHEEL_LAKE": str(lake)}
    would = call("erase", "--user", "ada", "--dry-run", "--json", **given).object()  # type: ignore[arg-type]
    assert would["would_remove"]["traces"] == 1 and would["flagged"] == []
    assert len(next(traces(home))) == 2
    done = call("erase", "--user", "ada", "--reason", "asked", "--json", **given).object()  # type: ignore[arg-type]
    assert done["left"] == [] and done["removed"]["traces"] == 1 and done["done"]
    assert done["searched"]["lake"] > 0
    ((one,),) = traces(home)
    assert one.user == "bob"
    assert parts and not parts & set(lake.rglob("*.parquet"))
    assert call("erase", "--user", "a", "--tenant", "b", home=home.root).code == 2
