"""`flywheel datasets`, as a script and a person call it."""

import json
from pathlib import Path

import pytest

from app.commands.datasets_ import command
from flywheel.errors import Refused, UsageError
from flywheel.home import Home
from flywheel.lineage import Dataset, Mark
from storage.curate import RuleSpec, curate
from storage.datasets import write_dataset
from tests.app.calling import call
from tests.app.seeing import stored
from tests.promoted import Promoted
from tests.storage.rows_for_curation import a_row

RULES = (RuleSpec(name="min_reward", params={"value": 1.0}),)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Dataset]:
    """Two versions in a home that the commands find, the first one marked; in a folder of its
    own."""
    import msgspec

    home = Home(tmp_path / "home")
    home.root.mkdir()
    monkeypatch.setenv("FLYWHEEL_HOME", str(home.root))
    monkeypatch.chdir(tmp_path)
    found = []
    for count in (4, 6):
        rows = [a_row(k) for k in range(count)] + [a_row(9, reward=0.0)]
        curated = curate(rows, RULES, [], 0.7)
        parents = [one.id for one in found]
        one = write_dataset(home, "support", curated, parents=parents, rules=RULES)
        found.append(msgspec.structs.replace(one, gate_passed=True))
    mark = Mark(project="support", target_kind="dataset", target=found[0].id, cause="feedback",
                reason="2 rows have another grade", touched=2, of=4, retrain=True)  # fmt: skip
    stored(home, found[:1])
    stored(home, [found[1], mark])
    return found


def said(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    command.main(list(arguments), standalone_mode=False)
    return capfd.readouterr().out


def test_datasets_are_listed_and_shown_with_what_became_of_them(
    made: list[Dataset], capfd: pytest.CaptureFixture[str]
) -> None:
    listed = said(capfd, "list")
    assert [one.id[:12] in listed for one in made] == [True, True] and "passed" in listed
    listing = json.loads(said(capfd, "list", "--project", "support", "--json"))["datasets"]
    assert [one["rows"] for one in listing] == [4, 6]
    assert {(one["product"], one["retired"]) for one in listing} == {("rows", None)}
    shown = said(capfd, "show", made[0].id[:8])
    assert "feedback: 2 rows have another grade (a retrain would be from other rows)" in shown
    assert f"successors   {made[1].id}" in shown and "min_reward" in shown
    with pytest.raises(UsageError, match="no dataset has this id"):
        said(capfd, "show", "nothing")


def test_two_are_compared_and_one_is_exported(
    made: list[Dataset], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = said(capfd, "diff", made[0].id, made[1].id)
    assert "2 added, 0 removed, 4 the same" in told
    page = tmp_path / f"{made[0].id[:8]}-{made[1].id[:8]}.html"
    assert "What changed between two datasets" in page.read_text()
    object = json.loads(said(capfd, "diff", made[0].id, made[1].id, "--json"))
    assert object["difference"]["added"] == 2 and not object["shifts"][0]["shifted"]
    assert "4 lines in" in said(capfd, "export", made[0].id, "--as", "chat")
    object = json.loads(said(capfd, "export", made[1].id, "--as", "chat", "--out", "x", "--json"))
    assert (object["items"], object["left_out"]) == (6, {})
    assert (tmp_path / "x" / "train.jsonl").is_file()


def test_what_was_retired_is_not_exported(
    made: list[Dataset], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import msgspec

    stored(Home(tmp_path / "home"), [msgspec.structs.replace(made[0], retired="1 row was erased")])
    with pytest.raises(Refused, match="1 row was erased"):
        said(capfd, "export", made[0].id)
    assert "retired" in said(capfd, "list")


@pytest.mark.slow
def test_what_a_turn_made_is_made_again_bit_for_bit(promoted: Promoted) -> None:
    (dataset,) = call("datasets", "list", "--json", home=promoted.home).object()["datasets"]
    said = call("datasets", "rebuild", dataset["id"], "--json", home=promoted.home)
    told = said.object()
    assert (said.code, told["same"], told["rows"]) == (0, True, dataset["rows"]), told
