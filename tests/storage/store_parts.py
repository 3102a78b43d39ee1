"""What the store's tests share: traces of every shape, and processes that die where told."""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from flywheel import failpoints
from flywheel.records import (
    Choice,
    File,
    Image,
    Message,
    ModelCall,
    Reasoning,
    Refusal,
    Sampling,
    Span,
    Text,
    Tokens,
    ToolCall,
    ToolResult,
    Trace,
    Truncated,
    Unknown,
    Usage,
    say,
    trace_id,
)

_HUNG_S = 240.0


def spoken(
    external: str = "e1",
    *,
    question: str = "where is my order",
    answer: str = "on its way",
    span: str = "s1",
    start: int | None = 1_000,
    project: str = "shop",
    source: str = "gateway",
    origin: str = "production",
    tokens: Tokens | None = None,
    **fields: object,
) -> Trace:
    """A trace of one model call."""
    call = ModelCall(
        input=(say("system", "be brief"), say("user", question)),
        choices=(Choice(message=say("assistant", answer), finish_reason="stop", tokens=tokens),),
        tools=(),
        usage=Usage(input_tokens=10, output_tokens=3),
    )
    spans = (
        Span(
            id=span, kind="model", start=start, end=None if start is None else start + 5, call=call
        ),
    )
    return Trace(
        id=trace_id(project, source, external), project=project, source=source,
        external_id=external, origin=origin, **{"spans": spans, **fields},  # type: ignore[arg-type]
    )  # fmt: skip


def everything() -> Trace:
    """A trace with every part type, every field, and text that other stores choke on."""
    parts = (
        Text(text="emoji \U0001f600, NUL \x00, line\nbreak, \u2028"),
        Text(text=""),
        Reasoning(text="hm", signature="sig"),
        ToolCall(name="get", arguments='{"a": ', id="c1"),
        ToolResult(content="né", id="c1", name="get", is_error=False),
        Image(url="http://x/y.png", media_type="image/png"),
        Image(digest="0" * 32),
        File(name="a.pdf", digest="1" * 32, media_type="application/pdf"),
        Refusal(text="no"),
        Unknown(kind="video", raw={"z": [1, 2.5, None, {"ключ": True}], "a": 2**53}),
        Truncated(kept="begin", size=10**7, digest="2" * 32),
    )
    tokens = Tokens(
        prompt_ids=(1, 2, 2**31 + 5), completion_ids=(3, 4), logprobs=(-0.1, -1e-300),
        policy_versions=("shop-v1", "shop-v2"), template_digest="t", tokenizer_digest="k",
    )  # fmt: skip
    call = ModelCall(
        input=(Message(role="user", parts=parts, name="bob"), Message(role="assistant")),
        choices=(
            Choice(message=say("assistant", "a"), finish_reason="stop", tokens=tokens),
            Choice(message=say("assistant", ""), finish_reason=None),
            Choice(message=say("assistant", "c"), tokens=Tokens(prompt_ids=(), completion_ids=())),
        ),
        tools=({"type": "function", "function": {"name": "get", "parameters": {"x": [1]}}},),
        model="m", response_model="m-1", deployment="shop-v1", routing_probability=0.25,
        sampling=Sampling(temperature=0.0, top_p=0.5, stop=("\n",), other={"n": 3}),
        usage=Usage(input_tokens=0, cached_input_tokens=0, output_tokens=7, reasoning_tokens=None),
        cost_usd=0.0, cached=False,
    )  # fmt: skip
    spans = (
        Span(id="root", kind="agent", name="run", start=1, end=9, attributes={"deep": [[[{}]]]}),
        Span(id="call", kind="model", parents=("root",), start=2, end=3, call=call, version=2),
        Span(id="bare", kind="model", parents=("root", "call"), error="boom", start=4,
             call=ModelCall(input=())),
        Span(id="tool", kind="tool", parents=("call",), start=5,
             tool=ToolCall(name="get", arguments="{}"), result=ToolResult(content="")),
        Span(id="other\x00", kind="other", start=-5),
    )  # fmt: skip
    return Trace(
        id=trace_id("shop", "import:x", "e\x00\u00e9"), project="shop", source="import:x",
        external_id="e\x00\u00e9", origin="import", spans=spans, conversation="c", user="",
        problem_id="p", run_id="r", attempt=0, raw="3" * 32,
        attributes={"n": None, "f": 0.1, "nested": {"a": ["\U0001f600", {"b": False}]}},
    )  # fmt: skip


def run_in_child(work: Callable[[], object], *, die_at: str | None = None) -> int:
    """Runs `work` in a forked child; returns how it ended: 0, or minus the signal's number."""
    child = os.fork()
    if child == 0:
        try:
            if die_at is not None:
                failpoints.arm(die_at)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    until = time.monotonic() + _HUNG_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Hung
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


class Hung(Exception):
    """The child never ended: a thread of the parent held, when it was forked, what it waits for."""


def killed_at(place: str, work: Callable[[], object]) -> None:
    """Runs `work` in a child that is killed with -9 at `place`; once more where it hung before."""
    for _ in range(3):
        with contextlib.suppress(Hung):
            assert run_in_child(work, die_at=place) == -signal.SIGKILL
            return
    raise AssertionError(f"the child hung three times before it came to {place}")
