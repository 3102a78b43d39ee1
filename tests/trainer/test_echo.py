"""Echo learns what was said in return to actions: those words, once, and nothing around them."""

from typing import Any

import msgspec

from environments.attempt import Finished
from flywheel.records import Message, ToolCall, ToolResult, say
from flywheel.train_section import TrainSection
from tests.trainer.playing import Turn, group, played, rewarded
from trainer.algorithms.contract import Context, Prepared
from trainer.algorithms.echo import echo
from trainer.render import Rendering
from trainer.samples import Sample

ASKED = (say("system", "Sort."), say("user", "2 1"))
CALL = Message(role="assistant", parts=(ToolCall(name="sort", arguments="[2, 1]", id="c"),))
SAID = Message(role="tool", parts=(ToolResult(content="1 2 done", id="c"),))


def two_turns(name: str, rendering: Rendering, last: str = "1 2", **more: Any) -> Finished:
    """A call, what the tool said, and an answer, as an engine that bridges would have them."""
    first = rendering.render_prompt(ASKED)
    called = [*encoded(rendering, "sort it"), rendering.stop_ids[0]]
    second = rendering.bridge([*first, *called], [SAID], prompt_length=len(first))
    assert second is not None
    answer = (*encoded(rendering, last), rendering.stop_ids[0])
    turns: list[Turn] = [(tuple(first), tuple(called)), (tuple(second), answer)]
    inputs = more.pop("inputs", (ASKED, (*ASKED, CALL, SAID)))
    return played(name, turns, rendering, inputs=inputs, **more)


def encoded(rendering: Rendering, text: str) -> list[int]:
    return list(rendering.tokenizer.encode(text, add_special_tokens=False))


def echoed(rendering: Rendering, rewards: tuple[float | None, ...], **more: Any) -> Prepared:
    rl = more.pop("rl", {})
    finished = [
        two_turns(f"t{k}", rendering, "1 2" if value else "2 1", **more)
        for k, value in enumerate(rewards)
    ]
    grades = [rewarded(f"t{k}", value) for k, value in enumerate(rewards)]
    settings = TrainSection.model_validate({"algorithm": "echo", "rl": rl})
    return echo([group(finished, grades)], Context(rendering, settings))


def learnt(sample: Sample, component: str, rendering: Rendering) -> str:
    weights = sample.weights.get(component, ())
    kept = zip(sample.token_ids, weights, sample.mask, strict=False)
    return rendering.decode([token for token, weight, masked in kept if masked and weight])


def test_the_environments_words_are_learnt_beside_the_actions(rendering: Rendering) -> None:
    right, wrong = echoed(rendering, (1.0, 0.0)).samples
    assert learnt(right, "ce", rendering) == "1 2 done" == learnt(wrong, "ce", rendering)
    assert learnt(right, "rl", rendering) == "sort it<|im_end|>1 2<|im_end|>"
    assert set(right.weights["ce"]) == {0.0, 0.1}
    both = [a and b for a, b in zip(right.weights["ce"], right.weights["rl"], strict=True)]
    assert not any(both), "each token is in one of the two"
    assert right.advantages and {right.advantages[at] for at in right.targets} == {0.0, 0.5}


def test_rollouts_that_teach_nothing_else_still_tell_how_the_environment_behaves(
    rendering: Rendering,
) -> None:
    prepared = echoed(rendering, (1.0, 1.0))
    assert prepared.counts == {"zero_advantage_groups": 1}
    assert [set(one.weights) for one in prepared.samples] == [{"ce"}, {"ce"}]
    assert all(learnt(one, "ce", rendering) == "1 2 done" for one in prepared.samples)
    ungraded = echoed(rendering, (1.0, 0.0, None))
    assert [set(one.weights) for one in ungraded.samples] == [{"rl", "ce"}, {"rl", "ce"}, {"ce"}]


def test_without_a_weight_echo_is_grpo(rendering: Rendering) -> None:
    prepared = echoed(rendering, (1.0, 0.0), rl={"echo": 0.0})
    assert [set(one.weights) for one in prepared.samples] == [{"rl"}, {"rl"}]


def test_what_cannot_be_told_from_the_template_is_counted_and_not_learnt(
    rendering: Rendering,
) -> None:
    other = (*ASKED, CALL, Message(role="tool", parts=(ToolResult(content="something else"),)))
    prepared = echoed(rendering, (1.0, 0.0), inputs=(ASKED, other))
    assert prepared.counts == {"environment_turns_unknown": 2}
    assert [set(one.weights) for one in prepared.samples] == [{"rl"}, {"rl"}]


def test_tokens_of_another_template_are_not_learnt_at_all(rendering: Rendering) -> None:
    prepared = echoed(rendering, (1.0, 1.0), template_digest="other")
    assert not prepared.samples and all("template other" in why for _, why in prepared.refused)


def test_what_two_branches_share_is_learnt_once(rendering: Rendering) -> None:
    whole = two_turns("t", rendering)
    first, second = whole.trace.spans
    assert first.call and second.call and second.call.choices[0].tokens
    prompt = second.call.choices[0].tokens.prompt_ids
    called = first.call.choices[0].tokens
    assert called is not None
    answer = (*encoded(rendering, "2 1"), rendering.stop_ids[0])
    turns: list[Turn] = [
        (called.prompt_ids, called.completion_ids),
        (prompt, second.call.choices[0].tokens.completion_ids),
        (prompt, answer),
    ]
    inputs = (ASKED, (*ASKED, CALL, SAID), (*ASKED, CALL, SAID))
    finished = [played("t", turns, rendering, inputs=inputs), two_turns("u", rendering)]
    settings = TrainSection(algorithm="echo")
    made = group(finished, [rewarded("t", 1.0), rewarded("u", 0.0)])
    samples = echo([made], Context(rendering, settings)).samples
    assert [learnt(one, "ce", rendering) for one in samples] == ["1 2 done", "", "1 2 done"]


def test_a_rollout_with_a_logprob_that_is_none_is_named(rendering: Rendering) -> None:
    bad = two_turns("t0", rendering)
    span = bad.trace.spans[0]
    assert span.call
    choice = span.call.choices[0]
    assert choice.tokens and choice.tokens.logprobs
    logprobs = (float("-inf"), *choice.tokens.logprobs[1:])
    tokens = msgspec.structs.replace(choice.tokens, logprobs=logprobs)
    call = msgspec.structs.replace(
        span.call, choices=(msgspec.structs.replace(choice, tokens=tokens),)
    )
    spans = (msgspec.structs.replace(span, call=call), *bad.trace.spans[1:])
    broken = Finished(msgspec.structs.replace(bad.trace, spans=spans), [])
    finished = [broken, two_turns("t1", rendering), two_turns("t2", rendering, "2 1")]
    grades = [rewarded(f"t{k}", value) for k, value in enumerate((1.0, 1.0, 0.0))]
    settings = TrainSection.model_validate({"algorithm": "echo"})
    prepared = echo([group(finished, grades)], Context(rendering, settings))
    assert [one.trace_id for one in prepared.samples] == ["t1", "t2"]
    ((named, reason),) = prepared.refused
    assert named == "t0" and "not finite" in reason
