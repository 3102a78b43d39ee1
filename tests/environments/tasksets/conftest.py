"""The problems that this project develops with, where they are; they are never copied."""

from pathlib import Path

import pytest

PROBLEMS = Path(__file__).resolve().parents[4] / "shared" / "problems"


@pytest.fixture
def problems() -> Path:
    if not PROBLEMS.is_dir():
        pytest.skip(f"no {PROBLEMS}")
    return PROBLEMS
