"""prefect.yaml, filled in for projects: their own times, events, paths; and its defaults."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from flywheel.home import Home
from flywheel.project import Project, ScheduleSection, load_project
from flywheel.settings import Settings
from tests.app.calling import call

ROOT = Path(__file__).resolve().parents[2]
SORTING = ROOT / "tests" / "sorting"
FLOWS = {"ingest", "grade", "curate", "turn", "registry", "retention", "trial"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / "a home"))
    place = Settings().at()
    place.root.mkdir()
    return place


def project(*, name: str = "sorting", timezone: str = "UTC", **schedule: Any) -> Project:
    return load_project(SORTING).model_copy(
        update={"name": name, "timezone": timezone, "schedule": ScheduleSection(**schedule)}
    )


def made(home: Home, *projects: Project) -> dict[tuple[str, str], dict[str, Any]]:
    from flows.deployments import definition, flow_of

    found = definition(home, projects)["deployments"]
    return {(flow_of(one), one["name"]): one for one in found}


def test_every_flow_of_every_project_is_deployed_with_nothing_left_to_fill_in(home: Home) -> None:
    found = made(home, project(), project(name="other"))
    assert set(found) == {(flow, name) for flow in FLOWS for name in ("sorting", "other")}
    assert "$" not in str(found)
    for (flow, name), one in found.items():
        assert (ROOT / one["entrypoint"].partition(":")[0]).exists()
        assert one["concurrency_limit"]["limit"] == 1
        job = one["work_pool"]["job_variables"]
        assert job["env"]["FLYWHEEL_DEPLOYMENT"] == f"{flow}/{name}"
        assert job["env"]["FLYWHEEL_HOME"] == str(home.root)
        assert float(job["env"]["FLYWHEEL_RUN_LIMIT_S"]) > 0


def test_parameters_of_each_deployment_are_those_of_its_flow(home: Home) -> None:
    import importlib
    import inspect

    for (flow, _), one in made(home, project()).items():
        function = getattr(importlib.import_module(f"flows.{flow}"), flow)
        given = dict(one.get("parameters", {}))
        for each in one["triggers"]:
            given |= each.get("parameters", {})
        inspect.signature(function.fn).bind(**given)


def test_times_are_the_projects_in_its_zone_and_off_is_none(home: Home) -> None:
    found = made(home, project(timezone="Europe/Berlin", ingest=30, grade="off", turn="5 5 * * 2"))
    assert found["ingest", "sorting"]["schedules"][0]["interval"] == 30
    assert found["ingest", "sorting"]["schedules"][0]["anchor_date"].startswith("2026-01-01")
    assert found["grade", "sorting"]["schedules"] == []
    (weekly,) = found["turn", "sorting"]["schedules"]
    assert (weekly["cron"], weekly["timezone"]) == ("5 5 * * 2", "Europe/Berlin")
    assert found["trial", "sorting"]["schedules"] == [], "only a version starts it"


def test_events_start_a_turn_or_a_trial_unless_the_project_wants_none(home: Home) -> None:
    from tasks.events import BROKEN, ENOUGH, REGISTERED, resource_of

    found = made(home, project())
    heard = {
        event: flow
        for (flow, _), one in found.items()
        for each in one["triggers"]
        for event in each["expect"]
    }
    assert heard == {ENOUGH: "turn", BROKEN: "turn", REGISTERED: "trial"}
    (version,) = found["trial", "sorting"]["triggers"]
    assert version["match"] == {"prefect.resource.id": resource_of("sorting")}
    assert version["parameters"] == {"version": "{{ event.payload.version }}"}
    without = made(home, project(enough_graded=None, drift=None))
    assert without["turn", "sorting"]["triggers"] == []


def test_prefect_yaml_by_hand_has_the_times_of_a_project_that_says_nothing() -> None:
    defaults = ScheduleSection().model_dump()
    template = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    for one in template["deployments"]:
        flow = one["entrypoint"].rpartition(":")[2]
        times = [each.get("cron", each.get("interval")) for each in one.get("schedules", [])]
        assert times == ([defaults[flow]] if flow in defaults else [])


def test_two_homes_have_queues_and_events_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.deployments import queue_of
    from tasks.events import resource_of

    seen = set()
    for name in ("first", "second", "first"):
        monkeypatch.setenv("FLYWHEEL_HOME", str(tmp_path / name))
        seen.add((queue_of(), resource_of("sorting")))
    assert len(seen) == 2


def test_a_folder_with_odd_characters_stays_what_it_is(home: Home) -> None:
    from flows.deployments import as_yaml, definition

    odd = Path('/tmp/a: "b" {{ $FLYWHEEL_HOME }} #c \\d ü')
    text = as_yaml(definition(home, [project().model_copy(update={"folder": odd})]))
    folders = {
        one.get("parameters", {}).get("project") for one in yaml.safe_load(text)["deployments"]
    }
    assert str(odd) in folders


def test_deploy_prints_the_file_and_tells_a_missing_project(tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = call("deploy", "--print", SORTING, home=home)
    assert said.code == 0 and len(yaml.safe_load(said.out)["deployments"]) == len(FLOWS)
    lost = call("deploy", "--json", tmp_path / "nowhere", home=home)
    assert lost.code == 2 and "flywheel init" in lost.object()["error"]


def test_prefect_listens_to_others_only_with_a_password_and_tells_a_taken_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import socket

    from flows.keeping import free_port
    from flywheel.errors import Busy, UsageError

    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    with pytest.raises(UsageError, match="PREFECT_SERVER_API_AUTH_STRING"):
        free_port("0.0.0.0", 0)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "user:password")
    assert free_port("0.0.0.0", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Busy, match="--port"):
            free_port("127.0.0.1", taken.getsockname()[1])
