from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from environments.judges.judge import ModelJudge, open_judge
from flywheel.judge_section import JudgeSection
from tests.environments.judges.scripted_judge import Endpoint, scripted_judge


class Opens(Protocol):
    def __call__(self, **section: Any) -> ModelJudge: ...


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted_judge() as made:
        yield made


@pytest.fixture
def judge(endpoint: Endpoint, tmp_path: Any) -> Opens:
    """Opens a judge at the scripted endpoint, its ledger in the test's own home."""

    def opens(**section: Any) -> ModelJudge:
        given = {"url": endpoint.url, "model": "scripted", "timeout_s": 30.0} | section
        return open_judge(JudgeSection.model_validate(given), tmp_path, project="shop")

    return opens
