"""A client and a provider that both speak Messages: each gets the other's own words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.serving.running import Running, running, terms
from tests.serving.scripted_messages import NEW, Vendor, vendor


@pytest.fixture
def claude() -> Iterator[Vendor]:
    with vendor() as scripted:
        yield scripted


@pytest.fixture
def gateway(tmp_path: Path, claude: Vendor) -> Iterator[Running]:
    provider = {"url": claude.url, "model": "claude-9", "protocol": "anthropic"}
    known = terms(providers={"claude": provider})
    with running(tmp_path, "http://127.0.0.1:9", terms=known) as up:
        up.champion("claude")
        yield up


def client(gateway: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0)


def test_unknown_fields_pass_in_both_directions(gateway: Running, claude: Vendor) -> None:
    asked: Any = {
        "model": "support",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "new"}],
        "extra_body": {"some_new_field": {"kept": [1, 2]}},
    }
    said = client(gateway).messages.create(**asked)
    assert said.model == "support-claude" and said.id.startswith("msg_")
    assert claude.requests[-1]["some_new_field"] == {"kept": [1, 2]}
    assert claude.requests[-1]["messages"] == asked["messages"]
    assert said.content[1].model_dump().items() >= NEW.items()
    assert said.usage.model_dump()["new_tokens"] == 3
    call = gateway.last().call
    assert call and call.usage.input_tokens == 107 and call.choices[0].finish_reason == "stop"


def test_a_stream_is_the_vendors_events_and_the_record_is_whole(gateway: Running) -> None:
    messages: Any = [{"role": "user", "content": "tool"}]
    ask = client(gateway).messages
    with ask.stream(model="support", max_tokens=50, messages=messages) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert final.usage.cache_read_input_tokens == 90 and final.usage.output_tokens == 5
    call = gateway.last().call
    assert call and call.usage.cached_input_tokens == 90 and call.usage.output_tokens == 5
    assert call.choices[0].finish_reason == "tool_calls"
