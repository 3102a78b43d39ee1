"""Groups of rollouts become samples with advantages; what does not is counted or named."""

from typing import Any

import msgspec
import pytest

from flywheel.records import Sampling
from flywheel.train_section import TrainSection
from tests.trainer.playing import group, played, rewarded
from trainer.algorithms.contract import Context, Group
from trainer.algorithms.grpo import grpo
from trainer.render import Rendering

PROMPT, RIGHT, WRONG = (1, 40, 41), (50, 51, 2), (60, 2)


def context(rendering: Rendering, **rl: Any) -> Context:
    return Context(rendering, TrainSection.model_validate({"algorithm": "grpo", "rl": rl}))


def pair(
    rendering: Rendering, rewards: tuple[float | None, ...] = (1.0, 0.0), **more: Any
) -> Group:
    said = [RIGHT, WRONG, (61, 2), (62, 2)][: len(rewards)]
    finished = [played(f"t{k}", [(PROMPT, one)], rendering, **more) for k, one in enumerate(said)]
    return group(finished, [rewarded(f"t{k}", value) for k, value in enumerate(rewards)])


def test_every_sampled_token_has_its_answers_advantage_and_no_other_token_any(
    rendering: Rendering,
) -> None:
    prepared = grpo([pair(rendering)], context(rendering))
    right, wrong = prepared.samples
    assert right.token_ids == PROMPT + RIGHT and right.mask == (False,) * 3 + (True,) * 3
    assert right.advantages == (0, 0, 0, 0.5, 0.5, 0.5)
    assert wrong.advantages == (0, 0, 0, -0.5, -0.5)
    assert right.weights == {"rl": (0, 0, 0, 1, 1, 1)}
    assert right.behaviour_logprobs == pytest.approx((0, 0, 0, -0.5, -0.51, -0.02))
    assert right.policy_versions == (None,) * 3 + ("p-v1",) * 3
    assert {right.group_id, wrong.group_id} == {"g"} and right.rollout_id == "t0"
    assert right.sampling is not None and right.sampling.temperature == 1.0
    assert not prepared.refused and not prepared.counts


def test_a_kl_to_the_start_weighs_what_the_project_says(rendering: Rendering) -> None:
    first, _ = grpo([pair(rendering)], context(rendering, kl=0.02)).samples
    assert first.weights["ref_kl"] == (0, 0, 0, 0.02, 0.02, 0.02)


def test_a_group_whose_answers_all_earned_the_same_is_counted(rendering: Rendering) -> None:
    groups = [pair(rendering, (1.0, 1.0)), pair(rendering), pair(rendering, (0.0, 0.0, 0.0))]
    prepared = grpo(groups, context(rendering))
    assert len(prepared.samples) == 2 and prepared.counts == {"zero_advantage_groups": 2}
    assert not prepared.refused


def test_what_has_no_reward_is_in_no_baseline(rendering: Rendering) -> None:
    prepared = grpo([pair(rendering, (1.0, None, 0.0, 0.0))], context(rendering))
    assert [one.trace_id for one in prepared.samples] == ["t0", "t2", "t3"]
    assert max(prepared.samples[0].advantages or ()) == pytest.approx(2 / 3)
    assert prepared.refused == (("t1", "reward right could not be given: not tried"),)
    alone = grpo([pair(rendering, (1.0, None))], context(rendering))
    assert not alone.samples and "it takes two" in alone.refused[-1][1]


def test_infrastructure_that_failed_is_no_reward(rendering: Rendering) -> None:
    gone = {"failed": "the engine is gone\nTraceback", "failed_by": "infrastructure"}
    finished = [
        played("a", [(PROMPT, RIGHT)], rendering),
        played("b", [(PROMPT, WRONG)], rendering),
        played("c", [], rendering, attributes=gone),
    ]
    made = group(finished, [rewarded("a", 1.0), rewarded("b", 0.0), rewarded("c", 0.0)])
    assert made.rollouts[2].reward is None
    assert made.rollouts[2].reason == "failed by infrastructure: the engine is gone"
    assert len(grpo([made], context(rendering)).samples) == 2


def test_each_calls_tokens_have_the_value_of_their_own_step(rendering: Rendering) -> None:
    turns = [(PROMPT, (50, 2)), ((*PROMPT, 50, 2, 42, 43), (51, 2))]
    finished = [played("a", turns, rendering), played("b", turns, rendering)]
    grades = [
        rewarded("a", 1.0, {"call-0": 0.0, "call-1": 1.0}),
        rewarded("b", 0.0, {"call-0": None, "call-1": 0.5}),
    ]
    # Values: a 0.5 and 1, b none and 0.25; the mean of the rollouts' means is (0.75 + 0.25) / 2.
    first, second = grpo([group(finished, grades)], context(rendering)).samples
    assert first.advantages == (0, 0, 0, 0, 0, 0, 0, 0.5, 0.5)
    assert first.mask == (False, False, False, True, True, False, False, True, True)
    assert second.advantages == (0, 0, 0, 0, 0, 0, 0, -0.25, -0.25)
    assert second.targets == (7, 8), "a step that could not be valued is masked"


def test_several_turns_are_the_sampled_ids_and_a_rewritten_history_forks(
    rendering: Rendering,
) -> None:
    said = [(PROMPT, (50, 300, 2)), ((*PROMPT, 50, 300, 2, 42), (51, 2))]
    # The harness dropped the reasoning from the history: other ids, so a path of its own.
    rewritten = [*said, ((*PROMPT, 300, 2, 42, 51, 2, 43), (52, 2))]
    finished = [played("a", rewritten, rendering), played("b", said, rendering)]
    grades = [rewarded("a", 1.0), rewarded("b", 0.0)]
    whole, fork, other = grpo([group(finished, grades)], context(rendering)).samples
    assert whole.token_ids == (*PROMPT, 50, 300, 2, 42, 51, 2)
    assert whole.targets == (3, 4, 5, 7, 8)
    assert fork.token_ids == (*PROMPT, 300, 2, 42, 51, 2, 43, 52, 2) and fork.targets == (9, 10)
    assert whole.trace_id == fork.trace_id == "a" and other.trace_id == "b"
    assert whole.advantages and fork.advantages and other.advantages
    assert fork.advantages[9] == whole.advantages[3] == -other.advantages[3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"template_digest": "other"}, "template other"),
        ({"tokenizer_digest": "other"}, "tokenizer other"),
        ({"tokenizer_digest": None}, "tokenizer None"),
        ({"logprobs": None}, "no logprobs"),
        ({"sampling": Sampling(temperature=1.0, top_p=0.9)}, "top_p 0.9"),
        ({"sampling": Sampling(temperature=1.0, top_k=20)}, "top_k 20"),
        ({"sampling": Sampling(temperature=0.0)}, "temperature 0"),
        ({"sampling": Sampling(other={"min_p": 0.1})}, "min_p"),
        ({"sampling": Sampling(other={"presence_penalty": 0.5})}, "presence_penalty"),
        ({"sampling": Sampling(other={"response_format": {"type": "json_object"}})}, "response"),
        ({"sampling": Sampling(other={"tool_choice": "required"})}, "tool_choice"),
        ({"sampling": Sampling(other={"guided_regex": "a+"})}, "guided_regex"),
    ],
)
def test_what_a_ratio_cannot_be_taken_to_is_refused(
    rendering: Rendering, changes: dict[str, Any], reason: str
) -> None:
    prepared = grpo([pair(rendering, **changes)], context(rendering))
    assert not prepared.samples and len(prepared.refused) == 2
    assert all(reason in why for _, why in prepared.refused)


def test_settings_that_shape_nothing_are_taken(rendering: Rendering) -> None:
    other = {"presence_penalty": 0, "tool_choice": "auto", "response_format": {"type": "text"},
             "logit_bias": None, "metadata": {"a": 1}}  # fmt: skip
    made = pair(rendering, sampling=Sampling(top_p=1.0, top_k=-1, other=other))
    assert len(grpo([made], context(rendering)).samples) == 2


def test_recomputed_logprobs_ask_nothing_of_the_engine(rendering: Rendering) -> None:
    made = pair(rendering, logprobs=None)
    wanted = context(rendering, old_logprobs="recomputed", max_staleness=0)
    first, _ = grpo([made], wanted).samples
    assert first.behaviour_logprobs is None and first.advantages


def test_a_prompt_with_two_bos_is_refused(rendering: Rendering) -> None:
    first = rendering.tokenizer.bos_token_id
    finished = [
        played(f"t{k}", [((first, first, 40), one)], rendering)
        for k, one in ((0, RIGHT), (1, WRONG))
    ]
    prepared = grpo([group(finished, [rewarded("t0", 1.0), rewarded("t1", 0.0)])],
                    context(rendering))  # fmt: skip
    assert not prepared.samples and "second BOS" in prepared.refused[0][1]


def test_a_rollout_that_sampled_nothing_still_tells_its_group(rendering: Rendering) -> None:
    finished = [played("a", [(PROMPT, RIGHT)], rendering), played("b", [], rendering)]
    prepared = grpo([group(finished, [rewarded("a", 1.0), rewarded("b", 0.0)])],
                    context(rendering))  # fmt: skip
    (sample,) = prepared.samples
    assert max(sample.advantages or ()) == 0.5
    assert prepared.refused == (("b", "none of its calls has tokens to train on"),)


def test_groups_pass_through_files_whole(rendering: Rendering) -> None:
    made = pair(rendering)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Group) == made


def test_what_no_micro_batch_can_hold_is_named_and_stops_no_run(rendering: Rendering) -> None:
    settings = TrainSection.model_validate({"algorithm": "grpo", "micro_tokens": 16})
    long = played("t0", [(PROMPT, (50,) * 20)], rendering)
    made = group([long, played("t1", [(PROMPT, WRONG)], rendering)],
                 [rewarded("t0", 1.0), rewarded("t1", 0.0)])  # fmt: skip
    prepared = grpo([made], Context(rendering, settings))
    assert [one.trace_id for one in prepared.samples] == ["t1"]
    assert prepared.refused[0][0] == "t0" and "train.micro_tokens = 16" in prepared.refused[0][1]


def test_rewards_too_large_to_compare_name_their_group(rendering: Rendering) -> None:
    made = pair(rendering, (3e200, 1e200))
    prepared = grpo([made], context(rendering, baseline="std"))
    assert not prepared.samples and prepared.refused[0][0] == "g"
