from typing import Any

import msgspec
import pytest

from app.commands.fidelity_ import lines
from flywheel.home import Home
from flywheel.records import Choice, Message, Refusal, Tokens, Trace, Usage, say, trace_id
from storage.committer import commit
from storage.fidelity_report import KINDS, Reason, code_of, fidelity_of
from storage.inbox import Inbox
from tests.storage.store_parts import spoken

IDS = Tokens(prompt_ids=(1,), completion_ids=(2,))


def sent(name: str, source: str = "import:shop", *, system: bool = True, **changed: Any) -> Trace:
    trace = spoken()
    span = trace.spans[0]
    assert span.call is not None
    error = changed.pop("error", None)
    told = (say("system", "be kind"), say("user", name))
    call = msgspec.structs.replace(span.call, input=told if system else told[1:], **changed)
    return msgspec.structs.replace(
        trace, id=trace_id("p", source, name), source=source, external_id=name, project="p",
        origin="import", spans=(msgspec.structs.replace(span, call=call, error=error),),
    )  # fmt: skip


def answer(*parts: Any, **fields: Any) -> tuple[Choice, ...]:
    said = Message(role="assistant", parts=parts) if parts else say("assistant", "ok")
    return (Choice(message=said, finish_reason="stop", **fields),)


def test_a_source_is_told_what_it_can_be_used_for_and_what_its_sender_must_change(home: Home):
    Inbox(home).append([
        sent("a", choices=answer(tokens=IDS)),
        sent("b", choices=answer(), usage=Usage(reason="not reported")),
        sent("c", choices=answer(), system=False),
        sent("d", choices=(), error="Error code: 503 - overloaded"),
        sent("e", choices=answer(Refusal(text="no"))),
        sent("f", "import:other", choices=(), error="the prompt is not allowed", system=False),
    ])  # fmt: skip
    commit(home)
    other, shop = fidelity_of(home, project="p")
    assert (shop.source, shop.traces) == ("import:shop", 5)
    assert (shop.trainable, shop.renderable, shop.view_only) == (1, 2, 2)
    assert (shop.calls, shop.usage_known) == (5, 4)
    found = {one.code: (one.traces, one.alone) for one in shop.reasons}
    assert found == {
        "no_tokens": (3, 2), "infrastructure": (1, 1), "refusal": (1, 0), "no_system": (1, 0),
    }  # fmt: skip
    assert [one.code for one in other.reasons] == ["no_answer"]  # none of its traces has a prompt
    told = "\n".join(lines(shop))
    assert "20% trainable, 40% renderable, 40% view only; tokens stated for 80% of calls" in told
    assert "return_token_ids" in told and "gen_ai.system_instructions" in told
    assert [one.source for one in fidelity_of(home, source="import:other")] == ["import:other"]
    assert fidelity_of(home, project="nobody") == []
    assert isinstance(shop.reasons[0], Reason) and shop.reasons[0].said == "no token ids"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("no answer: Error code: 429 - slow down", "infrastructure"),
        ("no answer: Connection reset by peer", "infrastructure"),
        ("no answer: Request timed out.", "infrastructure"),
        ("no answer: Error code: 400 - bad image", "rejected"),
        ("no answer: the conversation ends without an answer", "no_answer"),
        ("the answer was cut: the stream breaks off before its end", "cut"),
        ("a user message was truncated from 3000000 bytes", "truncated"),
        ("an assistant message has an image not kept", "media"),
        ("a user message has a file not kept", "media"),
        ("a user message has an file not kept", "media"),  # as it was spelled once
        ("tools were not recorded though they were called", "no_tools"),
        ("incomplete: 1 parent spans have not come (a)", "incomplete"),
        ("something new", "other"),
    ],
)
def test_every_reason_is_of_a_kind(reason: str, code: str):
    assert code_of(reason) == code


def test_every_kind_says_what_to_do_or_that_there_is_nothing():
    assert [code for code, kind in KINDS.items() if not kind.remedy] == ["refusal"]
