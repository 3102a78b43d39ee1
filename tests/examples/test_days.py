"""A day in the life, three times: a desk run by its schedule, end to end, on the tiny model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SORTING = ROOT / "tests" / "sorting"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The sorting project, with few problems and a gate that needs little to be convinced."""
    folder = tmp_path / "desk"
    folder.mkdir()
    for name in ("environment.py", "customers.py"):
        shutil.copy(SORTING / name, folder)
    (folder / "base").symlink_to(SORTING / "base")
    text = (SORTING / "flywheel.toml").read_text()
    text = text.replace('accept = "better"', 'accept = "better"\nconfidence = 0.6')
    text += "\n[problems]\nmax_train = 64\nmax_heldout = 48\n"
    (folder / "flywheel.toml").write_text(text)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_days_of_a_desk_bring_two_promotions_one_refusal_and_one_rollback(
    tmp_path: Path, desk: Path
) -> None:
    home = tmp_path / "home"
    script = str(ROOT / "examples" / "support" / "days.py")
    process = subprocess.run(
        [sys.executable, script, str(home), "--desk", str(desk), "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "FLYWHEEL_HOME": str(home), "PYTHONPATH": str(ROOT)},
        check=True,
        cwd=ROOT,
    )
    days = json.loads(process.stdout)["days"]
    assert [one["decision"] for one in days] == ["promoted", "refused", "rolled_back", "promoted"]
    assert days[3]["right"] < 0.6, "the base model answers again after the rollback"

    from flywheel.home import Home
    from serving.registry import Registry
    from serving.routing import read

    route = read(Home(home)).projects["sorting"]
    assert route.champion.version > 1
    aliases = Registry(Home(home)).aliases("sorting")
    assert aliases["champion"] == route.champion.registry_version
    assert aliases.get("challenger") != "2", "what ada moved by hand was set back"
