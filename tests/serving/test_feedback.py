"""Feedback at the gateway: before its trace, twice, after a change of mind, in batches, wrong."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flywheel.home import Home
from flywheel.records import Feedback
from serving.feedback_taken import Recent
from storage.committer import commit
from storage.judgements import feedback_for
from storage.preferred import preferences
from storage.queries import traces
from storage.repeats import Repeats
from tests.serving.running import Running, body, running
from tests.serving.scripted_upstream import upstream


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    with upstream() as scripted, running(tmp_path, scripted.url) as up:
        yield up


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One gateway for all that is refused and leaves nothing."""
    with running(tmp_path_factory.mktemp("home"), "http://127.0.0.1:9") as up:
        yield up


def say(gateway: Running, content: Any, **headers: str) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/feedback", json=content, headers=headers, verify=False)


def effective(gateway: Running) -> list[Any]:
    """What counts after a commit, of all traces."""
    commit(gateway.home)
    kept = [trace for batch in traces(gateway.home) for trace in batch]
    said = feedback_for(gateway.home, kept)
    return [one.value for trace in kept for one in said.get(trace.id, [])]


def test_feedback_may_come_before_its_trace(gateway: Running) -> None:
    assert say(gateway, {"conversation_id": "c-1", "value": True}).status_code == 202
    url = gateway.url + "/v1/chat/completions"
    httpx.post(url, content=body(), headers={"x-conversation-id": "c-1"})
    assert effective(gateway) == [True]


def test_each_kind_of_target_finds_its_trace(gateway: Running) -> None:
    url = gateway.url + "/v1/chat/completions"
    answer = httpx.post(url, content=body(), headers={"x-conversation-id": "c-1"})
    targets = {
        "trace_id": answer.headers["x-flywheel-trace-id"],
        "conversation_id": "c-1",
        "response_id": answer.json()["id"],
    }
    for name, target in targets.items():
        assert say(gateway, {name: target, "value": name, "name": name}).status_code == 202
    assert sorted(effective(gateway)) == sorted(targets)


@pytest.mark.parametrize("at", [{}, {"at": "2026-11-01T10:00:00Z"}, {"at": 1_761_000_000}])
def test_a_repetition_is_one_record(gateway: Running, at: dict[str, Any]) -> None:
    content = {"response_id": "r", "value": {"queue": "billing"}, "by": "ann", **at}
    first, second = say(gateway, content), say(gateway, content)
    assert first.json()["id"] == second.json()["id"]
    assert second.json()["repeated"]
    assert len({one.id for one in gateway.feedback()}) == 1


def test_a_change_of_mind_supersedes_and_may_be_changed_back(gateway: Running) -> None:
    url = gateway.url + "/v1/chat/completions"
    response_id = httpx.post(url, content=body()).json()["id"]
    for value in ("good", "bad", "bad", "good"):
        say(gateway, {"response_id": response_id, "value": value})
    times = [one.at for one in gateway.feedback()]
    assert times == sorted(set(times)) and len(times) == 3
    assert effective(gateway) == ["good"]


def test_a_late_retry_with_its_key_does_not_undo_a_change_of_mind(gateway: Running) -> None:
    url = gateway.url + "/v1/chat/completions"
    response_id = httpx.post(url, content=body()).json()["id"]
    first = {"response_id": response_id, "value": "good"}
    keyed = {"idempotency-key": "k-1"}
    one = say(gateway, first, **keyed).json()
    say(gateway, {**first, "value": "bad"}, **{"idempotency-key": "k-2"})
    again = say(gateway, first, **keyed).json()
    assert again["id"] == one["id"] and again["repeated"]
    assert effective(gateway) == ["bad"]
    other = say(gateway, {**first, "value": "other"}, **keyed)
    assert other.status_code == 400 and "idempotency" in other.json()["error"]["message"]


def test_two_people_do_not_supersede_each_other(gateway: Running) -> None:
    for by in ("ann", "bob"):
        say(gateway, {"conversation_id": "c", "value": by, "by": by})
    httpx.post(
        gateway.url + "/v1/chat/completions",
        content=body(),
        headers={"x-conversation-id": "c"},
    )
    assert sorted(effective(gateway)) == ["ann", "bob"]


@pytest.mark.parametrize("wrap", [lambda items: items, lambda items: {"feedback": items}])
def test_a_batch_is_taken_whole_or_not_at_all(gateway: Running, wrap: Any) -> None:
    items = [{"response_id": str(number), "value": number} for number in range(5)]
    good = say(gateway, wrap(items), **{"idempotency-key": "batch"})
    assert good.status_code == 202 and len(good.json()["feedback"]) == 5
    assert all(one["repeated"] for one in say(gateway, wrap(items)).json()["feedback"])
    bad = say(gateway, wrap([*items[:2], {"response_id": "x"}, *items[3:]]))
    assert bad.status_code == 400 and "[2]" in bad.json()["error"]["message"]
    assert len(gateway.feedback()) == 5
    assert say(gateway, wrap([items[0]] * 1001)).status_code == 400
    assert say(gateway, wrap([])).status_code == 202


def test_kinds_follow_the_value_where_they_are_not_said(gateway: Running) -> None:
    cases = [
        (True, "boolean"),
        (0.5, "number"),
        ("fine", "text"),
        ({"queue": "a"}, "demonstration"),
    ]
    for value, _ in cases:
        say(gateway, {"response_id": "r", "value": value, "comment": "why"})
    say(gateway, {"response_id": "r", "value": "spam", "kind": "category"})
    say(gateway, {"response_id": "r", "value": "the right text", "kind": "demonstration"})
    kinds = [(one.value, one.kind) for one in gateway.feedback()]
    assert kinds[:4] == cases and [kind for _, kind in kinds[4:]] == ["category", "demonstration"]
    assert gateway.feedback()[0].attributes == {"comment": "why"}


BAD: dict[str, Any] = {
    "nothing": {},
    "no value": {"response_id": "r"},
    "null": {"response_id": "r", "value": None},
    "no target": {"value": 1},
    "two targets": {"response_id": "r", "trace_id": "t", "value": 1},
    "target is a number": {"response_id": 5, "value": 1},
    "empty target": {"response_id": "", "value": 1},
    "long target": {"response_id": "x" * 300, "value": 1},
    "typo": {"response_id": "r", "valeu": 1},
    "wrong kind": {"response_id": "r", "value": "x", "kind": "number"},
    "unknown kind": {"response_id": "r", "value": "x", "kind": "stars"},
    "no time": {"response_id": "r", "value": 1, "at": "yesterday"},
    "no zone": {"response_id": "r", "value": 1, "at": "2026-01-01T00:00:00"},
    "the future": {"response_id": "r", "value": 1, "at": "2126-01-01T00:00:00Z"},
    "before all": {"response_id": "r", "value": 1, "at": -5},
    "no time at all": {"response_id": "r", "value": 1, "at": 1e300},
    "other project": {"response_id": "r", "value": 1, "project": "other"},
    "nul": {"response_id": "r\0", "value": 1},
    "nul in value": {"response_id": "r", "value": {"a\0": 1}},
    "a word": "good",
    "words": ["good"],
    "a number": 5,
    "a review": {"trace_id": "t", "name": "review", "kind": "category", "value": "accepted"},
    "preferring nothing": {"kind": "preference", "value": "a"},
    "preferring itself": {"kind": "preference", "value": {"chosen": "a", "rejected": "a"}},
    "preferring a number": {"kind": "preference", "value": {"chosen": 1, "rejected": 0}},
    "preferring of another": {
        "kind": "preference",
        "trace_id": "t",
        "value": {"chosen": "a", "rejected": "b"},
    },
    "preferring both ways": {"kind": "preference", "value": {"chosen": 1, "rejected": "a"}},
    "wrapped word": {"feedback": "good"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_feedback_is_a_400_and_nothing_is_kept(standing: Running, name: str) -> None:
    answer = say(standing, BAD[name])
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert standing.feedback() == []


def test_bytes_that_are_no_json_are_a_400(standing: Running) -> None:
    for content in (b"", b"{", b"\xff", b"[" * 10_000, b'{"a":' * 10_000, b'"\\ud800"'):
        answer = httpx.post(standing.url + "/v1/feedback", content=content)
        assert answer.status_code == 400, content[:10]


def test_feedback_that_cannot_be_kept_is_not_said_to_be(gateway: Running) -> None:
    gateway.home.journal.write_text("no folder can be made here")
    content = {"response_id": "r", "value": 1}
    answer = say(gateway, content)
    assert answer.status_code == 503 and answer.headers["retry-after"]
    gateway.home.journal.unlink()
    while (answer := say(gateway, content)).status_code == 503:
        pass
    assert answer.status_code == 202 and not answer.json()["repeated"]
    assert len(gateway.feedback()) == 1


def test_memory_of_what_was_said_is_bounded_and_shared(tmp_path: Path) -> None:
    repeats, others = Repeats(Home(tmp_path), size=10), Repeats(Home(tmp_path))
    recent, other = Recent(repeats), Recent(others)
    for number in range(100):
        said = Feedback(project="p", target=str(number), value=number)
        with recent.together():
            kept, repeated = recent.settle(said, f"key {number}")
            recent.keep(kept, f"key {number}")
        assert not repeated
    ((rows,),) = repeats._opened().execute("SELECT count(*) FROM said").fetchall()
    assert rows <= 20
    with other.together():
        assert other.settle(Feedback(project="p", target="99", value=99), None)[1]
        assert not other.settle(Feedback(project="p", target="1", value=1), None)[1]


def test_a_repetition_is_known_after_a_restart_and_a_damaged_memory_begins_anew(
    tmp_path: Path,
) -> None:
    content = {"response_id": "r", "value": 1}
    for repeated in (False, True):
        with running(tmp_path, "http://127.0.0.1:9") as gateway:
            assert say(gateway, content).json()["repeated"] == repeated
    for one in tmp_path.glob("repeats.sqlite*"):
        one.write_bytes(b"no database" * 1000)
    with running(tmp_path, "http://127.0.0.1:9") as gateway:
        assert say(gateway, content).status_code == 202


def test_an_episode_is_spoken_of_by_the_callers_id(gateway: Running) -> None:
    content = body(metadata={"episode_id": "run 7"})
    httpx.post(gateway.url + "/v1/chat/completions", content=content)
    say(gateway, {"episode_id": "run 7", "value": 0.5})
    assert effective(gateway) == [0.5]


def test_a_preference_between_two_responses_may_be_turned_round(gateway: Running) -> None:
    ids = [httpx.post(gateway.url + "/v1/chat/completions", content=body()).json()["id"]
           for _ in range(2)]  # fmt: skip
    for chosen, rejected in (ids, ids[::-1]):
        value = {"chosen": chosen, "rejected": rejected}
        assert say(gateway, {"kind": "preference", "value": value, "by": "ann"}).status_code == 202
    value = {"chosen": 1, "rejected": 0}
    several = {"kind": "preference", "response_id": ids[0], "value": value}
    assert say(gateway, several).status_code == 202
    commit(gateway.home)
    first, second = preferences(gateway.home, "support")
    found = sorted([first, second], key=lambda one: one.chosen.choice)
    assert [found[0].chosen.handle, found[0].rejected.handle] == ids[::-1]
    assert found[0].chosen.trace_id != found[0].rejected.trace_id
    assert (found[1].chosen.choice, found[1].rejected.choice) == (1, 0)
    assert found[1].chosen.trace_id == found[1].rejected.trace_id


def test_people_at_odds_prefer_neither(gateway: Running) -> None:
    say(gateway, {"kind": "preference", "value": {"chosen": "a", "rejected": "b"}, "by": "ann"})
    say(gateway, {"kind": "preference", "value": {"chosen": "b", "rejected": "a"}, "by": "bob"})
    commit(gateway.home)
    assert preferences(gateway.home, "support") == []
