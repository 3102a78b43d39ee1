"""Whole turns on the tiny model: learning, refusal of the control, what a second turn is told."""

import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import msgspec
import pytest

from flywheel.errors import Busy
from flywheel.home import Home
from flywheel.project import load_project
from flywheel.records import Choice, Trace, say
from flywheel.settings import Settings

pytestmark = pytest.mark.slow


def send(url: str, project: str, asks: list[Any]) -> list[dict[str, Any]]:
    """Asks the gateway, one conversation an ask."""
    answers = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for ask in asks:
            answer = client.post(
                "/v1/chat/completions",
                headers={"x-conversation-id": ask.conversation},
                json={
                    "model": project,
                    "messages": [{"role": m.role, "content": m.text} for m in ask.messages],
                    "user": ask.user,
                    "max_tokens": 16,
                },
            )
            answer.raise_for_status()
            answers.append(answer.json())
    return answers


def tell(url: str, feedback: list[Any]) -> None:
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for said in feedback:
            body = {
                "conversation_id": said.target,
                "name": said.name,
                "kind": said.kind,
                "value": said.value,
                "by": said.by,
            }
            client.post("/v1/feedback", json=body).raise_for_status()


def test_requests_and_feedback_become_a_better_model_that_serves(
    prefect_server: str, home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    from flows.turn import turn
    from serving.registry import Registry
    from serving.routing import read
    from serving.server import ensure
    from storage.lineage import lineage
    from storage.queries import counts

    project = load_project(project_folder)
    asks = traffic.asks(160)
    with ensure(home, project, Settings()) as server:
        send(server.url, project.name, asks)
        tell(server.url, traffic.feedback(project.name, asks))
        report = turn(str(project_folder))
        assert report["decision"] == "promoted", report["reason"]
        evaluation = report["evaluation"]
        assert evaluation["low"] > 0
        assert evaluation["candidate"] > evaluation["champion"] + 0.15
        answer = send(server.url, project.name, traffic.asks(1, seed=9))[0]
        assert answer["model"] == report["deployment"] == "sorting-v1"

    assert (
        Registry(home).aliases(project.name)["champion"]
        == read(home).projects[project.name].champion.registry_version
    )
    chain = lineage(home, report["deployment"])
    kinds = [link.kind for link in chain]
    for kind in ("deployment", "checkpoint", "run", "dataset", "trace"):
        assert kind in kinds, kinds
    found = counts(home, project.name)
    assert found["traces"] == 160, "the last answer waits in the journal for the next turn"
    assert found["rollouts"] >= 4 * 64


@pytest.mark.soak  # first looks: rollbacks in tests/app/test_commands.py and tests/serving
def test_what_a_person_took_back_stays_back_and_a_moved_home_goes_on(
    prefect_server: str,
    home: Home,
    project_folder: Path,
    traffic: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flows.turn import turn
    from serving.promotion import rollback
    from serving.registry import Registry
    from serving.routing import read

    monkeypatch.setenv("FLYWHEEL_TRAINER", "inline")
    deliver(home, traffic, 160)
    first = turn(str(project_folder))
    assert first["deployment"] == "sorting-v1", first["reason"]
    rollback(home, "sorting", engine=None, registry=Registry(home), by="ada", reason="too short")

    moved = home.root.rename(home.root.with_name("moved"))
    monkeypatch.setenv("FLYWHEEL_HOME", str(moved))
    again = turn(str(project_folder))
    assert (again["decision"], again["gate"]) == ("refused", "person")
    assert "ada" in again["reason"] and "too short" in again["reason"]
    assert (
        again["deployment"] == read(Home(moved)).projects["sorting"].champion.name == "sorting-v0"
    )
    assert again["steps"]["train_candidate"] == first["steps"]["train_candidate"], (
        "kept, not redone"
    )


def test_a_turn_on_shuffled_rewards_is_refused(
    prefect_server: str,
    home: Home,
    project_folder: Path,
    traffic: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flows.turn import turn
    from serving.routing import read
    from storage.queries import records

    monkeypatch.setenv("FLYWHEEL_TRAINER", "inline")
    file = project_folder / "flywheel.toml"
    file.write_text(file.read_text() + "\n[curate]\nshuffle_rewards = 7\n")
    deliver(home, traffic, 160)
    report = turn(str(project_folder))
    assert report["decision"] == "refused"
    assert report["gate"] == "learning"
    assert read(home).projects["sorting"].champion.name == "sorting-v0"
    assert [one.outcome for one in records(home, "decision") if one.gate == "learning"] == [
        "refused"
    ]


@pytest.mark.soak
def test_recorded_answers_of_a_better_model_teach_ours(
    prefect_server: str, home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    """Supervised fine-tuning on imported conversations that feedback says were right."""
    from flows.turn import turn
    from storage.inbox import Inbox

    file = project_folder / "flywheel.toml"
    text = file.read_text().replace("[train]", '[train]\nalgorithm = "sft"')
    rules = """
[[curate.rules]]
name = "fidelity"
accept = ["trainable", "renderable"]
[[curate.rules]]
name = "confirmed"
[[curate.rules]]
name = "min_reward"
value = 1.0
[[curate.rules]]
name = "exact_duplicates"
"""
    file.write_text(text + '\n[curate]\nsources = ["recorded"]\n' + rules)
    asks = traffic.asks(160)
    traces = traffic.recorded("sorting", asks, "teacher")
    Inbox(home).append([taught(*pair) for pair in zip(traces, asks, strict=True)])
    Inbox(home).append(traffic.feedback("sorting", asks))
    report = turn(str(project_folder))
    assert report["decision"] == "promoted", report["reason"]
    assert report["run"]["algorithm"] == "sft"
    assert "sample_chunk" not in report["steps"]


def taught(trace: Trace, ask: Any) -> Trace:
    """The trace as a model that knows the answer would have left it."""
    (span,) = trace.spans
    assert span.call
    right = Choice(message=say("assistant", ask.answer), finish_reason="stop")
    call = msgspec.structs.replace(span.call, choices=(right,))
    return msgspec.structs.replace(
        trace, origin="import", spans=(msgspec.structs.replace(span, call=call),)
    )


def test_nothing_to_learn_from_is_refused_by_the_data_gate(
    prefect_server: str, home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    from flows.turn import turn

    deliver(home, traffic, 3)
    report = turn(str(project_folder))
    assert (report["decision"], report["gate"]) == ("refused", "data")
    assert "nothing to learn from" in report["reason"]
    from storage.queries import records

    told = [(one.gate, one.outcome) for one in records(home, "decision")]
    assert told == [("window", "passed"), ("leakage", "passed"), ("data", "refused")]


def test_two_turns_of_one_project_never_run_at_once(
    home: Home, project_folder: Path, traffic: ModuleType
) -> None:
    from tasks.turns import only_turn

    project = load_project(project_folder)
    told: list[str] = []

    def second() -> None:
        try:
            with only_turn(project):
                told.append("ran")
        except Busy as busy:
            told.append(str(busy))

    with only_turn(project):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "already under way" in told[0]


def deliver(home: Home, traffic: ModuleType, count: int) -> None:
    """Traffic and feedback as the gateway would have recorded them, without the requests."""
    from storage.inbox import Inbox

    asks = traffic.asks(count)
    Inbox(home).append(traffic.recorded("sorting", asks, "sorting-v0"))
    Inbox(home).append(traffic.feedback("sorting", asks))
