"""What the trainer is told to do once: its reason comes back as an error of the right kind."""

from pathlib import Path
from typing import Any

import pytest

from flywheel.errors import FlywheelError, Refused
from tasks.ordered import carried_out

BASE = Path(__file__).resolve().parents[1] / "sorting" / "base"


def order(place: Path, adapter: Path) -> dict[str, Any]:
    pairs = [{"prompt_ids": [1, 2], "completion_ids": [3]}]
    return {
        "base_model": str(BASE), "adapter": str(adapter), "old": None, "pairs": pairs,
        "out": str(place / "probe.json"),
    }  # fmt: skip


@pytest.mark.slow
def test_an_order_that_fails_says_why(tmp_path: Path) -> None:
    def probed(adapter: Path, minutes: float = 2) -> None:
        carried_out(
            "trainer.probing", order(tmp_path, adapter), tmp_path, minutes=minutes, failed="alas"
        )

    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (broken / name).write_text("{")
    with pytest.raises(Refused, match=r"^alas: .*broken"):
        probed(broken)
    with pytest.raises(FlywheelError, match="alas: it took over 0 minutes"):
        probed(BASE, minutes=0)
