"""What the doctor says of judges: the key, the address, the price, and how far to trust them."""

from pathlib import Path

import pytest

from app.doctor.examine import examine
from app.doctor.finding import Case, Finding
from app.doctor.table import CHECKS
from flywheel.lineage import Calibration
from flywheel.settings import Settings
from tests.environments.judges.scripted_judge import scripted_judge
from tests.tasks.judging_project import store, write_project


def test_a_judge_is_told_with_what_it_lacks_and_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "home"))
    settings = Settings()
    home = settings.at()
    home.root.mkdir()

    def said(*folders: Path) -> list[Finding]:
        (told,) = examine(Case(home, settings, folders), {"judges": CHECKS["judges"]})
        return told.findings

    assert [one.level for one in said()] == ["ok"]
    with scripted_judge() as endpoint:
        bare = write_project(tmp_path / "bare", endpoint.url, key_env="NO_SUCH_KEY")
        found = {one.level: one for one in said(bare.folder)}
        assert "NO_SUCH_KEY is not set" in found["wrong"].says
        warnings = [one.says for one in said(bare.folder) if one.level == "warning"]
        assert len(warnings) == 2 and "has no price" in warnings[0]
        assert "informs only: it was never compared with people" in warnings[1]
        whole = write_project(tmp_path / "desk", endpoint.url, price_in=0.0, price_out=0.0)
        store(home, [Calibration(id="c", project="desk", judge="j", reward="kind", model="m",
                                 data="d", n=40, kappa=0.8)])  # fmt: skip
        (told,) = said(whole.folder)
        assert told.level == "ok" and "priced and calibrated" in told.says
        assert not endpoint.asked
    (gone,) = said(whole.folder)
    assert gone.level == "warning" and "does not answer" in gone.says
