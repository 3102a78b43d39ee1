from pathlib import Path

import pytest

from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.lineage import (
    Checkpoint,
    Dataset,
    Decision,
    Deployment,
    Evaluation,
    Run,
    SliceResult,
)
from flywheel.records import Problem, say
from flywheel.row_files import write_rows
from flywheel.rows import TrainingRow
from storage.committer import commit
from storage.inbox import Inbox
from storage.lineage import Link, lineage
from tests.storage.store_parts import spoken

OVERALL = SliceResult(
    name="all", problems=1, champion=0.1, candidate=0.9, difference=0.8, low=0.1, high=1.0
)
ORDER = ["deployment", "decision", "evaluation", "checkpoint", "run", "dataset", "problem", "trace"]


def a_turn(home: Home, version: int, champion: str) -> dict[str, str]:
    """Everything that a turn writes; returns the ids by what they are."""
    run, question = f"run{version}", f"question {version}"
    source = spoken(f"customer{version}", question=question)
    problem = Problem(environment="support", messages=(say("user", question),), trace_id=source.id)
    rollouts = [
        spoken(f"{run}/{k}", question=question, start=k, origin="rollout", source=f"rollout:{run}",
               run_id=run, problem_id=problem.id)
        for k in range(2)
    ]  # fmt: skip
    dataset = Dataset(id=f"data{version}", project="shop", path=f"datasets/data{version}", rows=1,
                      parents=(run,))  # fmt: skip
    folder = home.path(dataset.path)
    folder.mkdir(parents=True)
    row = TrainingRow(trace_id=rollouts[0].id, span_id="s1", messages=(),
                      completion=say("assistant", "a"), problem_id=problem.id)  # fmt: skip
    write_rows(folder / "rows.parquet", [row])
    name = f"shop-v{version}"
    Inbox(home).append([
        source, problem, *rollouts, dataset,
        Run(id=run, project="shop", algorithm="rft", base_model="m", champion=champion,
            snapshot="s", dataset_id=dataset.id),
        Checkpoint(id=f"weights{version}", run_id=run, kind="adapter", path=f"runs/{run}", steps=9,
                   parent=None if version == 1 else f"weights{version - 1}"),
        Evaluation(id=f"eval{version}", project="shop", run_id=run, champion=champion,
                   candidate=name, overall=OVERALL),
        Decision(id=f"decision{version}", project="shop", outcome="promoted", gate="learning",
                 reason="better", by="gate", at=version, run_id=run,
                 evaluation_id=f"eval{version}", deployment=name, replaced=champion),
        Deployment(name=name, project="shop", version=version, base_model="m",
                   checkpoint_id=f"weights{version}", run_id=run),
    ])  # fmt: skip
    commit(home)
    return {"source": source.id, "problem": problem.id, "kept": rollouts[0].id,
            "dropped": rollouts[1].id, "rows": str(folder / "rows.parquet")}  # fmt: skip


def kinds(links: list[Link]) -> list[str]:
    return [link.kind for link in links]


def test_a_deployment_leads_down_to_the_traces_that_made_it_and_to_no_others(home: Home) -> None:
    a_turn(home, 1, "shop-v0")
    made = a_turn(home, 2, "shop-v1")
    links = lineage(home, "shop-v2")
    assert kinds(links) == [*ORDER, "trace"]
    assert {link.id for link in links if link.kind == "trace"} == {made["kept"], made["source"]}
    parents = {link.id: link.parents for link in links}
    assert parents["shop-v2"] == ("weights2", "run2")
    assert parents["decision2"] == ("eval2", "run2")
    assert parents["weights2"] == ("run2", "weights1")
    assert parents["run2"] == ("data2", "shop-v1")
    assert parents["data2"] == ("run2", made["kept"])
    assert parents[made["kept"]] == (made["problem"],)
    assert parents[made["problem"]] == (made["source"],)
    assert parents[made["source"]] == ()


@pytest.mark.parametrize("start", ["source", "kept", "problem"])
def test_a_trace_leads_up_to_the_deployments_it_helped_to_make(home: Home, start: str) -> None:
    made = a_turn(home, 1, "shop-v0")
    a_turn(home, 2, "shop-v1")
    links = lineage(home, made[start])
    assert kinds(links) == [*ORDER, "trace"]
    assert links[0].id == "shop-v1"


def test_a_version_that_was_refused_is_told_with_its_run(home: Home) -> None:
    a_turn(home, 1, "shop-v0")
    Inbox(home).append([
        Run(id="run9", project="shop", algorithm="rft", base_model="m", champion="shop-v1",
            snapshot="s", dataset_id="data1"),
        Evaluation(id="eval9", project="shop", run_id="run9", champion="shop-v1",
                   candidate="shop-v9", overall=OVERALL),
        *(Decision(id=f"decision9{at}", project="shop", outcome=outcome, gate=gate, reason=gate,
                   by="gate", at=at, run_id="run9")
          for at, (outcome, gate) in enumerate([("passed", "data"), ("refused", "learning")])),
    ])  # fmt: skip
    commit(home)
    with pytest.raises(UsageError, match=r"never deployed: refused by the learning gate.*run9"):
        lineage(home, "shop-v9")
    assert "run9" in {link.id for link in lineage(home, "run9")}


def test_a_rollout_that_was_not_kept_made_nothing(home: Home) -> None:
    made = a_turn(home, 1, "shop-v0")
    links = lineage(home, made["dropped"])
    assert kinds(links) == ["problem", "trace", "trace"]


@pytest.mark.parametrize("id", ["decision1", "eval1", "weights1", "run1", "data1"])
def test_from_the_middle_it_leads_both_ways(home: Home, id: str) -> None:
    made = a_turn(home, 1, "shop-v0")
    links = lineage(home, id)
    assert id in {link.id for link in links}
    assert made["source"] in {link.id for link in links}
    assert "shop-v1" in {link.id for link in links}


def test_the_senders_own_id_of_a_trace_will_do(home: Home) -> None:
    a_turn(home, 1, "shop-v0")
    assert lineage(home, "customer1")[0].id == "shop-v1"


def test_a_dataset_whose_rows_are_gone_ends_the_chain_there(home: Home) -> None:
    made = a_turn(home, 1, "shop-v0")
    Path(made["rows"]).unlink()
    assert kinds(lineage(home, "shop-v1")) == ORDER[:6]


def test_an_unknown_id_is_said(home: Home) -> None:
    with pytest.raises(UsageError, match="nobody"):
        lineage(home, "nobody")
    a_turn(home, 1, "shop-v0")
    with pytest.raises(UsageError, match="nobody"):
        lineage(home, "nobody")
