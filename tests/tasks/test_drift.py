"""Drift: the champion's answers now against its first, unknown where too few were graded."""

from pathlib import Path

import pytest

from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.project import Project, load_project
from flywheel.records import Choice, Grade, ModelCall, Span, Trace, Usage, say
from tasks.drift import drift

SORTING = Path(__file__).resolve().parents[1] / "sorting"


def project(**schedule: object) -> Project:
    loaded = load_project(SORTING)
    section = loaded.schedule.model_copy(update={"drift_traces": 10, "drift": 0.15, **schedule})
    return loaded.model_copy(update={"schedule": section})


def record(
    home: Home,
    values: list[float | None],
    *,
    deployment: str = "sorting-v0",
    origin: str = "production",
    begin: int = 0,
    weight: float = 1.0,
) -> None:
    """Traces one a second, each with its grade."""
    from storage.committer import commit
    from storage.inbox import Inbox

    records: list[Trace | Grade] = []
    for number, value in enumerate(values, begin):
        at, name = number * 1_000_000_000, f"{origin}-{deployment}-{number}"
        call = ModelCall(
            input=(say("user", name),),
            tools=(),
            choices=(Choice(message=say("assistant", name), finish_reason="stop"),),
            deployment=deployment,
            usage=Usage(reason="not recorded"),
        )
        span = Span(id="call", kind="model", start=at, end=at + 1, call=call)
        trace = Trace(id=name, project="sorting", source="gateway", external_id=name,
                      origin=origin, spans=(span,))  # type: ignore[arg-type]  # fmt: skip
        grade = Grade(trace_id=name, reward="correct", value=value, weight=weight,
                      reason=None if value is not None else "unknown", at=1)  # fmt: skip
        records += [trace, grade]
    Inbox(home).append(records)
    commit(home)


def test_answers_that_became_worse_break_the_bound(home: Home) -> None:
    record(home, [1.0] * 10 + [0.5] * 20 + [0.8, 0.8] * 5)
    found = drift(home, project())
    assert found["deployment"] == "sorting-v0" and found["traces"] == 40
    assert (found["first"], found["last"]) == (pytest.approx(1.0), pytest.approx(0.8))
    assert found["fell"] == pytest.approx(0.2) and found["broken"]
    assert "1.000" in found["reason"] and "0.800" in found["reason"]


@pytest.mark.parametrize("last", [1.0, 0.86, 0.9])
def test_answers_within_the_bound_or_better_break_nothing(home: Home, last: float) -> None:
    record(home, [1.0] * 10 + [last] * 10)
    assert not drift(home, project())["broken"]


def test_too_few_graded_traces_are_unknown_with_the_reason(home: Home) -> None:
    record(home, [1.0] * 10 + [None] * 30 + [0.0] * 9)
    found = drift(home, project())
    assert (found["first"], found["last"], found["fell"]) == (None, None, None)
    assert not found["broken"]
    assert "19 graded traces" in found["reason"] and "20 are needed" in found["reason"]


def test_only_graded_production_answers_of_the_champion_count(home: Home) -> None:
    record(home, [1.0] * 20)
    record(home, [0.0] * 20, deployment="sorting-v7", begin=100)
    record(home, [0.0] * 20, origin="rollout", begin=200)
    record(home, [0.0] * 20, origin="import", begin=300)
    found = drift(home, project())
    assert found["traces"] == 20 and not found["broken"]


def test_the_champion_of_the_routing_file_is_looked_at(home: Home) -> None:
    import msgspec

    from serving import routing

    record(home, [1.0] * 10 + [0.0] * 10)
    record(home, [0.5] * 20, deployment="sorting-v1", begin=100)
    champion = Deployment(name="sorting-v1", project="sorting", version=1, base_model="base")
    route = routing.ProjectRoute(project="sorting", base_model="base", champion=champion)
    now = routing.read(home)
    routing.replace(home, msgspec.structs.replace(now, projects={"sorting": route}))
    found = drift(home, project())
    assert (found["deployment"], found["traces"], found["broken"]) == ("sorting-v1", 20, False)


def test_no_bound_and_no_store_are_told_as_what_they_are(home: Home) -> None:
    assert "sets no bound" in drift(home, project(drift=None))["reason"]
    assert "0 graded traces" in drift(home, project())["reason"]


def test_a_trace_is_graded_when_all_of_its_rewards_are_known(home: Home) -> None:
    from storage.committer import commit
    from storage.graded import graded
    from storage.inbox import Inbox

    record(home, [1.0, None, 0.0])
    record(home, [1.0], weight=0.0, begin=50)
    assert graded(home, "sorting") == 2
    second = Grade(trace_id="production-sorting-v0-0", reward="polite", value=None, reason="?")
    Inbox(home).append([second])
    commit(home)
    assert graded(home, "sorting") == 1, "one of its rewards is not known"
    assert graded(home, "other") == 0
