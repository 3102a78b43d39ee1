"""The page of an evaluation: all of it shown, none of it run."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from flywheel.records import (
    Choice,
    Image,
    Message,
    ModelCall,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    say,
)
from tasks.eval_episode import conversation
from tests.tasks.answering import answering
from tests.tasks.evaluating import evaluated, setting

HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=2'>",
    "<!--<script>",
    "\u202egnihton\u202c \x00\x1b[31m \u2028",
    "<style>body{display:none}</style>" + "A" * 20_000,
)


def hostile_page(tmp_path: Path) -> Path:
    made = setting(tmp_path, problems=len(HOSTILE), samples=1)
    said = iter(HOSTILE)
    with answering(lambda _: next(said)) as model:
        found = evaluated(made, model)
    return Path(found["report"])


def data_of(page: str) -> Any:
    (held,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(held)


def test_what_a_model_wrote_is_data_and_nothing_else(tmp_path: Path) -> None:
    page = hostile_page(tmp_path).read_text()
    scripts = re.findall(r"<script\b[^>]*>(.*?)</script>", page, re.S)
    assert len(scripts) == 2
    outside = page.replace(scripts[0], "").replace(scripts[1], "")
    assert "hacked" not in outside and "onerror" not in outside and "<img" not in outside
    for sign in "<>&":
        assert sign not in scripts[0]
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0])
    digest = base64.b64encode(hashlib.sha256(scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy
    answers = {one["said"][-1]["parts"][0]["x"] for one in data_of(page)["episodes"]}
    assert HOSTILE[0] in answers
    assert "\u27e8U+202E\u27e9gnihton\u27e8U+202C\u27e9 \u27e8U+0000\u27e9\u27e8U+001B\u27e9[31m " \
        "\u27e8U+2028\u27e9" in answers  # fmt: skip
    assert any("more characters" in one and len(one) < 9_000 for one in answers)


def test_a_conversation_shows_calls_results_branches_and_step_rewards() -> None:
    asked = say("user", "look it up")
    calls = Message(role="assistant", parts=(ToolCall(name="find", arguments='{"a": 1}', id="1"),))
    result = Message(role="tool", parts=(ToolResult(content="no <b>", id="1", is_error=True),))
    pictures = (Image(url="data:image/png;base64,AAAA"), Image(url="https://elsewhere/x.png"))
    picture = Message(role="user", parts=(*pictures, Text(text="?")))

    def span(number: int, before: tuple[Message, ...], said: Message) -> Span:
        choice = Choice(message=said, finish_reason="stop")
        call = ModelCall(input=before, choices=(choice,))
        return Span(id=f"c{number}", kind="model", start=number, call=call)

    trace = Trace(
        id="t", project="p", source="s", external_id="e", origin="evaluation",
        spans=(
            span(1, (asked,), calls),
            Span(id="t1", kind="tool", name="find", start=2, error="it raised"),
            span(3, (asked, calls, result), say("assistant", "done")),
            span(4, (picture,), say("assistant", "seen")),
        ),
    )  # fmt: skip
    blocks = conversation(trace, ())
    assert [one["role"] for one in blocks] == [
        "user", "assistant", "tool: find", "tool", "assistant", "branch", "user", "assistant",
    ]  # fmt: skip
    assert blocks[1]["parts"] == [{"t": "call", "name": "find", "x": '{"a": 1}'}]
    assert blocks[2]["error"] == "it raised"
    assert blocks[3]["parts"][0] == {"t": "result", "name": "", "x": "no <b>", "failed": True}
    assert [part["t"] for part in blocks[6]["parts"]] == ["picture", "note", "text"]
