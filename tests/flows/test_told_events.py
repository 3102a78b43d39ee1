"""What was told to the automations: remembered for each thing, with its time, by a real server."""

import json
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flywheel import durable
from flywheel.home import Home


@pytest.fixture
def deployed(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a flow run that a deployment made, as far as a run knows it."""
    from types import SimpleNamespace

    from prefect.context import FlowRunContext

    run = SimpleNamespace(deployment_id=uuid4())
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run, flow=None))


def file(home: Home) -> Path:
    return home.prefect / "told" / "sorting.json"


def age(home: Home, version: str, seconds: float) -> None:
    from tasks.events import REGISTERED

    told: dict[str, Any] = json.loads(file(home).read_bytes())
    told[REGISTERED][version] = time.time() - seconds
    durable.write(file(home), json.dumps(told).encode())


@pytest.mark.slow
def test_two_newcomers_are_told_once_each_and_then_waited_for_each(
    deployed: None, home: Home, project_folder: Path
) -> None:
    from tasks.asked import tell_newcomer
    from tasks.events import tell_registered

    def both() -> list[bool]:
        return [tell_newcomer.fn(str(project_folder), version) for version in ("7", "8")]

    assert both() == [True, True]
    assert not tell_registered("sorting", "7") and not tell_registered("sorting", "8")
    assert both() == [True, True], "the automation has them"
    age(home, "7", 1000)
    assert both() == [False, True], "nobody took 7: this pass evaluates it"
    age(home, "8", -10_000)
    assert both() == [False, False], "the clock was set back"


@pytest.mark.slow
def test_what_a_home_of_before_was_told_and_what_is_damaged(deployed: None, home: Home) -> None:
    from tasks.events import ENOUGH, REGISTERED, tell_registered, told_at

    durable.write(file(home), json.dumps({REGISTERED: "7", ENOUGH: "a run"}).encode())
    assert told_at("sorting", REGISTERED, "7") is not None
    assert not tell_registered("sorting", "7") and tell_registered("sorting", "8")
    assert not tell_registered("sorting", "7"), "it is still known"
    assert told_at("sorting", ENOUGH, "a run") is not None
    durable.write(file(home), b'{"half')
    assert told_at("sorting", REGISTERED, "7") is None and tell_registered("sorting", "7")
