from typing import Any

import msgspec
import pytest

from flywheel.records import (
    Choice,
    File,
    Image,
    Message,
    ModelCall,
    Span,
    Tokens,
    ToolCall,
    Trace,
    Truncated,
    Unknown,
    say,
)
from storage.fidelity import judge, judge_call
from tests.storage.store_parts import spoken

IDS = Tokens(prompt_ids=(1, 2), completion_ids=(3, 4), logprobs=(-0.5, -0.1))
CALLED = Message(role="assistant", parts=(ToolCall(name="get", arguments="{}"),))


def with_call(trace: Trace, **changed: Any) -> Trace:
    span = trace.spans[0]
    assert span.call is not None
    choice = {name: changed.pop(name) for name in ("message", "finish_reason", "tokens")
              if name in changed}  # fmt: skip
    if choice:
        changed["choices"] = (msgspec.structs.replace(span.call.choices[0], **choice),)
    error = changed.pop("error", None)
    call = msgspec.structs.replace(span.call, **changed)
    return msgspec.structs.replace(
        trace, spans=(msgspec.structs.replace(span, call=call, error=error),)
    )


def said(*parts: Any) -> Message:
    return Message(role="user", parts=parts)


def test_token_ids_make_it_trainable_even_where_tools_are_unknown() -> None:
    assert judge(with_call(spoken(), tokens=IDS)) == ("trainable", ())
    unknown = with_call(spoken(), tokens=IDS, tools=None, message=CALLED)
    assert judge(unknown) == ("trainable", ())
    bare = msgspec.structs.replace(IDS, logprobs=None)
    assert judge(with_call(spoken(), tokens=bare))[0] == "trainable"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (None, "no token ids"),
        (Tokens(prompt_ids=(), completion_ids=(1,)), "empty"),
        (Tokens(prompt_ids=(1,), completion_ids=(1, 2), logprobs=(0.0,)), "parallel"),
    ],
)
def test_without_usable_token_ids_whole_messages_are_renderable(tokens: Any, reason: str) -> None:
    fidelity, reasons = judge(with_call(spoken(), tokens=tokens))
    assert fidelity == "renderable"
    assert reason in reasons[0]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"choices": (), "error": "429"}, "no answer: 429"),
        ({"choices": ()}, "no answer"),
        ({"finish_reason": None}, "cut"),
        ({"finish_reason": None, "error": "client left"}, "cut: client left"),
        ({"message": Message(role="assistant")}, "no content"),
        ({"input": (said(Truncated(kept="x", size=9, digest="d")),), "tokens": IDS}, "truncated"),
        ({"message": said(Truncated(kept="x", size=9, digest="d")), "tokens": IDS}, "truncated"),
        ({"input": ()}, "no prompt"),
        ({"tools": None, "message": CALLED}, "tools were not recorded"),
        ({"tools": None, "input": (say("user", "x"), CALLED)}, "tools were not recorded"),
        ({"input": (said(Unknown(kind="video", raw=1)),)}, "unknown kind video"),
        ({"input": (said(Image(media_type="image/png")),)}, "image not kept"),
        ({"input": (said(File(name="a.pdf")),)}, "file not kept"),
    ],
)
def test_what_is_broken_is_view_only_and_says_why(changed: dict[str, Any], reason: str) -> None:
    fidelity, reasons = judge(with_call(spoken(), **changed))
    assert fidelity == "view_only"
    assert any(reason in one for one in reasons), reasons


def test_a_format_that_never_says_how_answers_end_is_renderable() -> None:
    assert judge(with_call(spoken(origin="import"), finish_reason=None))[0] == "renderable"
    assert judge(with_call(spoken(origin="demonstration"), finish_reason=None))[0] == "renderable"


def test_the_last_call_is_judged_and_retries_before_it_do_not_count() -> None:
    good = spoken().spans[0]
    failed = Span(id="f", kind="model", start=1, error="429", call=ModelCall(input=()))
    assert judge(spoken(spans=(failed, good)))[0] == "renderable"
    late = msgspec.structs.replace(failed, start=10_000)
    assert judge(spoken(spans=(good, late)))[0] == "view_only"


def test_no_model_call_is_view_only() -> None:
    step = Span(id="a", kind="agent")
    assert judge(spoken(spans=(step,))) == ("view_only", ("no model call",))
    assert judge_call(step) == ("view_only", ("no model call",))


def test_an_empty_answer_that_was_said_counts() -> None:
    choice = Choice(message=say("assistant", ""), finish_reason="stop")
    assert judge(with_call(spoken(), choices=(choice,)))[0] == "renderable"


def test_an_answer_that_ended_by_calls_which_are_not_there_cannot_be_rendered() -> None:
    empty = with_call(
        spoken(), message=say("assistant", ""), finish_reason="tool_calls", tokens=None
    )
    assert judge(empty) == (
        "view_only",
        (
            "no token ids",
            "the answer has no content: it ended by tool_calls, and the calls were not recorded",
        ),
    )
    there = with_call(spoken(), message=CALLED, finish_reason="tool_calls", tokens=None, tools=())
    assert judge(there)[0] == "renderable"
