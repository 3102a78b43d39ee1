"""Recorded answers, off-policy; and a teacher's answers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from flywheel.records import Sampling
from flywheel.row_files import read_rows, write_rows
from flywheel.rows import TrainingRow
from flywheel.train_section import TrainSection
from trainer.algorithms.contract import Context
from trainer.algorithms.recorded import recorded
from trainer.algorithms.teacher import teacher
from trainer.render import Rendering

WHOLE = Sampling(temperature=0.7, top_p=1.0)


def context(rendering: Rendering, **rl: Any) -> Context:
    return Context(rendering, TrainSection.model_validate({"algorithm": "recorded", "rl": rl}))


def test_answers_to_one_problem_are_each_others_group(row_of: Any, rendering: Rendering) -> None:
    rows = [
        row_of([2, 1], trace_id="a", reward=1.0, sampling=WHOLE),
        row_of([3, 1], trace_id="b", problem_id="p21", reward=0.0, sampling=WHOLE, weight=0.5),
    ]
    good, bad = recorded(rows, context(rendering)).samples
    assert good.advantages and bad.advantages
    assert {good.advantages[at] for at in good.targets} == {0.5}
    assert {bad.advantages[at] for at in bad.targets} == {-0.5}
    assert {bad.weights["rl"][at] for at in bad.targets} == {0.5} and set(bad.weights) == {"rl"}
    assert good.behaviour_logprobs and {good.behaviour_logprobs[at] for at in good.targets} == {
        -0.5
    }
    assert good.sampling == WHOLE and good.group_id == "p21"


def test_an_answer_alone_stands_beside_its_slice(row_of: Any, rendering: Rendering) -> None:
    rows = [row_of([at, 1], reward=float(at == 2), sampling=WHOLE) for at in (2, 3, 4, 5)]
    rows += [row_of([9, 8], reward=1.0, sampling=WHOLE, slice="other")]
    rows += [row_of([7, 8], reward=1.0, sampling=WHOLE, problem_id=None)]
    prepared = recorded(rows, context(rendering))
    given = {one.row_id: max(one.advantages or (), key=abs) for one in prepared.samples}
    assert [given[row.id] for row in rows[:4]] == pytest.approx([0.6, -0.4, -0.4, -0.4])
    assert given[rows[5].id] == pytest.approx(0.6)
    assert prepared.refused == (
        (rows[4].id, "slice other has no second answer to compare it with"),
    )


def test_groups_that_earned_the_same_are_counted(row_of: Any, rendering: Rendering) -> None:
    rows = [row_of([at, 1], problem_id="p", sampling=WHOLE) for at in (2, 3)]
    prepared = recorded(rows, context(rendering))
    assert not prepared.samples and prepared.counts == {"zero_advantage_groups": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward": None}, "no reward"),
        ({"sampling": None}, "not recorded how"),
        ({"sampling": Sampling(top_p=0.9)}, "top_p 0.9"),
        ({"sampling": Sampling(temperature=0.0)}, "temperature 0"),
        ({"sampling": Sampling(other={"response_format": {"type": "json_object"}})}, "response"),
        ({"tokens": None}, "no sampled tokens"),
        ({"finish_reason": "content_filter"}, "did not end"),
    ],
)
def test_what_no_ratio_can_be_taken_to_is_refused(
    row_of: Any, rendering: Rendering, changes: dict[str, Any], reason: str
) -> None:
    rows = [row_of([2, 1], **{"sampling": WHOLE, **changes})]
    prepared = recorded(rows, context(rendering))
    assert not prepared.samples and reason in prepared.refused[0][1]


def test_rows_without_logprobs_have_no_ratio(row_of: Any, rendering: Rendering) -> None:
    def blind(digits: list[int], reward: float) -> TrainingRow:
        row: TrainingRow = row_of(digits, reward=reward, problem_id="p", sampling=WHOLE)
        assert row.tokens is not None
        return msgspec.structs.replace(
            row, tokens=msgspec.structs.replace(row.tokens, logprobs=None)
        )

    rows = [blind([2, 1], 1.0), blind([3, 1], 0.0)]
    for rl in ({}, {"old_logprobs": "recomputed", "correction": "tis"}):
        assert "no logprobs" in recorded(rows, context(rendering, **rl)).refused[0][1]


def test_an_answer_that_was_cut_is_learnt_from_as_it_is(row_of: Any, rendering: Rendering) -> None:
    rows = [row_of([2, 1], reward=1.0, problem_id="p", sampling=WHOLE)]
    cut: TrainingRow = row_of([3, 1], reward=0.0, problem_id="p", sampling=WHOLE)
    assert cut.tokens is not None and cut.tokens.logprobs is not None
    tokens = msgspec.structs.replace(
        cut.tokens, completion_ids=cut.tokens.completion_ids[:2], logprobs=cut.tokens.logprobs[:2]
    )
    rows.append(msgspec.structs.replace(cut, tokens=tokens, finish_reason="length"))
    assert len(recorded(rows, context(rendering)).samples) == 2


def test_how_it_was_sampled_stays_in_the_rows_file(row_of: Any, tmp_path: Path) -> None:
    rows = [row_of([2, 1], sampling=Sampling(top_p=0.9, other={"min_p": 0.1})), row_of([3, 1])]
    write_rows(tmp_path / "rows.parquet", rows)
    assert read_rows(tmp_path / "rows.parquet") == rows


def test_a_teachers_answers_are_learnt_as_sampled_or_else_rendered(
    row_of: Any, rendering: Rendering
) -> None:
    own = row_of([2, 1])
    other = row_of([3, 1])
    assert other.tokens is not None
    foreign = msgspec.structs.replace(other.tokens, tokenizer_digest="another model's")
    other = msgspec.structs.replace(other, tokens=foreign)
    exact, laid_out = teacher([own, other], Context(rendering, TrainSection())).samples
    assert exact.behaviour_logprobs is not None and laid_out.behaviour_logprobs is None
    ids, _ = rendering.render_sample(other.messages, other.completion)
    assert laid_out.token_ids == tuple(ids) and set(laid_out.weights) == {"ce"}


@pytest.mark.slow
def test_recorded_answers_train_off_policy_and_only_the_good_ones_become_likelier(
    job_in: Any, row_of: Any, rendering: Rendering
) -> None:
    from trainer.job import run
    from trainer.probe import read_probe

    rl = {"loss": "cispo", "correction": "tis"}
    path: Path = job_in("job", train={"algorithm": "recorded", "rl": rl, "learning_rate": 1e-3})
    rows = []
    for at in range(10):
        right = row_of([at, 9, 0], sampling=Sampling(temperature=1.0))
        assert right.tokens is not None
        backwards = (*right.tokens.completion_ids[-2::-1], *rendering.stop_ids)
        said = msgspec.structs.replace(right.tokens, completion_ids=backwards)
        rows += [right, msgspec.structs.replace(right, tokens=said, reward=0.0)]
    write_rows(path.parent / "rows.parquet", rows)
    result = run(path)
    assert result.rows == 20 and not result.refused and result.steps == 10
    for one in read_probe(path.parent / "probe.json").entries:
        good = one.completion_ids[0] < one.completion_ids[-2]
        assert (sum(one.new) > sum(one.old)) == good


def test_a_reward_that_is_no_number_is_in_no_baseline(row_of: Any, rendering: Rendering) -> None:
    rewards = (1.0, 0.0, float("nan"), float("inf"))
    rows = [
        row_of([at, 1], reward=one, problem_id="p", sampling=WHOLE)
        for at, one in enumerate(rewards)
    ]
    prepared = recorded(rows, context(rendering))
    assert [max(one.advantages or (), key=abs) for one in prepared.samples] == [0.5, -0.5]
    assert [reason.partition(":")[0] for _, reason in prepared.refused] == [
        "its reward is nan", "its reward is inf",
    ]  # fmt: skip
    huge = [msgspec.structs.replace(row, reward=3e200 * (at + 1)) for at, row in enumerate(rows)]
    assert len(recorded(huge, context(rendering, baseline="std")).refused) == 4
