"""What the environment promises: gold answers earn full marks, wrong ones do not, always alike."""

from pathlib import Path

from environments.load import load_environment
from tasks.env_check import check

HERE = Path(__file__).resolve().parents[1] / "template_package"


def test_gold_answers_earn_full_marks_and_wrong_ones_do_not() -> None:
    found = check("environment.py:Template", HERE, {})
    assert found.passed, [one for one in found.findings if one.ok is False]
    assert found.gold > 0


def test_a_wrong_key_of_the_configuration_is_told() -> None:
    environment = load_environment("environment.py:Template", HERE, {"tolerance": 0.5})
    assert environment.config.model_dump()["tolerance"] == 0.5
