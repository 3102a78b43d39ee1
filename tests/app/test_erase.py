"""`flywheel erase`: what would go, what went out of the home and its lake, and how it is told."""

from pathlib import Path

import pytest

from app.commands.erase_ import lines
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
    done = call("erase", "--user", "ada", "--reason", "ada asked", "--json", **given).object()  # type: ignore[arg-type]
    assert done["left"] == [] and done["removed"]["traces"] == 1 and done["done"]
    assert done["searched"]["lake"] > 0 and done["reason"] == "[erased]"
    ((one,),) = traces(home)
    assert one.user == "bob"
    assert parts and not parts & set(lake.rglob("*.parquet"))
    assert call("erase", "--user", "a", "--tenant", "b", home=home.root).code == 2
    assert call("erase", "--user", "bob", "--project", "nope", home=home.root).code == 2
    assert len(next(traces(home))) == 1


@pytest.mark.slow
def test_what_is_due_goes_at_once_and_is_told_in_plain_words(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    day, desk = 86_400 * 10**9, tmp_path / "desk"
    desk.mkdir()
    (desk / "flywheel.toml").write_text(
        'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
        "[retention]\ndays = 5\n"
    )
    Inbox(home).append([
        spoken("old", question="an old question about parcels", start=day, project="desk"),
        spoken("told", question="a told question about parcels", start=day, expires=2 * day),
        spoken("kept", question="a kept question about parcels", start=day),
    ])  # fmt: skip
    commit(home)
    assert call("erase", "--due", "--user", "ada", home=home.root).code == 2
    would = call("erase", "--due", "--dry-run", "--json", home=home.root).object()
    assert [(one["project"], one["would_remove"]["traces"]) for one in would["due"]] == [
        ("shop", 1)
    ]
    (receipt,) = call("erase", "--due", "--project", desk, "--json", home=home.root).object()["due"]
    assert receipt["removed"]["traces"] == 1 and receipt["left"] == []
    said = call("erase", "--due", home=home.root).out
    assert "nothing is left" in said and "removed      traces: 1\n" in said
    assert call("erase", "--due", home=home.root).out == "nothing is over\n"
    assert [one.external_id for one in next(traces(home))] == ["kept"]


def test_a_receipt_is_words_dates_and_sizes() -> None:
    told = list(lines({
        "id": "e", "reason": "", "at": 1_764_504_000 * 10**9 + 5, "done": None,
        "removed": {"traces": 1200, "raw bytes": 2048}, "datasets": {"d": None},
        "searched": {"runs": 3 << 20, "needles looked for": 4}, "left": ("x",),
    }))  # fmt: skip
    assert told == [
        "id           e",
        "began        2025-11-30 12:00:00 UTC",
        "not done yet: run `flywheel erase` again, it goes on",
        "removed      traces: 1,200",
        "removed      raw bytes: 2.0 KiB",
        "datasets     d: retired, no row is left",
        "searched     runs: 3.0 MiB",
        "searched     needles looked for: 4",
        "left         x",
    ]
