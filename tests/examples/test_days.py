"""A day in the life, three times: the support desk run by its schedule, end to end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".models" / "smollm2-135m-instruct"


@pytest.mark.slow
@pytest.mark.real_model
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not (MODEL / "model.safetensors").is_file(), reason="no model: make model")
def test_three_days_of_the_desk_bring_two_promotions_one_refusal_and_one_rollback(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    process = subprocess.run(
        [sys.executable, str(ROOT / "examples/support/days.py"), str(home), "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "FLYWHEEL_HOME": str(home)},
        check=True,
        cwd=ROOT,
    )
    days = json.loads(process.stdout)["days"]
    assert [one["decision"] for one in days] == ["promoted", "refused", "rolled_back", "promoted"]
    assert days[3]["right"] < 0.6, "the base model answers again after the rollback"

    from flywheel.home import Home
    from serving.registry import Registry
    from serving.routing import read

    route = read(Home(home)).projects["support"]
    assert route.champion.version > 1
    aliases = Registry(Home(home)).aliases("support")
    assert aliases["champion"] == route.champion.registry_version
    assert aliases.get("challenger") != "2", "what ada moved by hand was set back"
