"""What rules are told of the store, as of a sequence of its ledger."""

from pathlib import Path
from typing import Any

import msgspec

from flywheel.home import Home
from flywheel.lineage import Deployment
from flywheel.records import Feedback, Grade, Problem, say
from flywheel.reviews import NAME, SETTLES
from storage.committer import commit
from storage.inbox import Inbox
from storage.known import known_of
from storage.rules.rule import Known
from storage.snapshots import snapshot
from tests.storage.store_parts import spoken

BASE = Deployment(name="shop-v0", project="shop", version=0, base_model="/models/tiny-1b")


def put(home: Home, *records: Any) -> int:
    Inbox(home).append(list(records))
    commit(home)
    return snapshot(home, "shop").sequence


def seen(home: Home, until: int | None = None) -> Known:
    return known_of(home, project="shop", traffic="shop", environment="shop", champion=BASE,
                    sequence=until or 1 << 40, until=until,
                    rules=("balance", "difficulty", "agreement"))  # fmt: skip


def review(target: str, by: str, verdict: str, **more: object) -> Feedback:
    said = {"verdict": verdict, **more}
    return Feedback(project="shop", target=target, value=True, at=1, name=NAME, by=by,
                    kind="boolean", attributes=said)  # fmt: skip


def test_rates_reviews_clusters_and_deployments_are_those_that_the_snapshot_saw(
    tmp_path: Path,
) -> None:
    home = Home(tmp_path)
    problem = Problem(environment="shop", messages=(say("user", "q"),), text="q", split="train",
                      attributes={"cluster": "orders"})  # fmt: skip
    trace = spoken("one", start=5)
    [span] = trace.spans
    assert span.call is not None
    answered = msgspec.structs.replace(span.call, deployment="shop-v0")
    trace = msgspec.structs.replace(trace, spans=(msgspec.structs.replace(span, call=answered),))
    grade = Grade(trace_id=trace.id, reward="right", value=1.0, problem_id=problem.id)
    external = msgspec.structs.replace(BASE, name="shop-v1", version=1, kind="external")
    first = put(home, trace, problem, grade, external, review(trace.id, "ada", "accepted"))
    told = seen(home)
    assert (told.pass_rates, told.tries) == ({problem.id: 1.0}, {problem.id: 1})
    assert (told.clusters, told.reviews) == ({problem.id: "orders"}, {trace.id: (1, 1.0)})
    assert told.deployments == {"shop-v0"} and told.now == 10

    later = msgspec.structs.replace(grade, value=0.0, at=9, grader="anew")
    put(home, later, review(trace.id, "bob", "rejected"),
        msgspec.structs.replace(BASE, name="shop-v2", version=2))  # fmt: skip
    assert seen(home).pass_rates == {problem.id: 0.0}
    assert seen(home).reviews == {trace.id: (2, 0.5)}
    assert seen(home).deployments == {"shop-v0", "shop-v2"}
    assert seen(home, first) == told
    put(home, review(trace.id, "eve", "accepted", **{SETTLES: True}))
    assert seen(home).reviews == {trace.id: (3, 1.0)}


def test_an_empty_home_knows_who_the_champion_is(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert seen(home) == Known(
        project="shop", deployments=frozenset({"shop-v0"}), base="/models/tiny-1b",
        embeddings=home.embeddings,
    )  # fmt: skip
