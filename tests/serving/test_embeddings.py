"""Embeddings, passed through: asked with OpenAI's client, counted, and not recorded."""

from pathlib import Path

import openai
import pytest

from serving.observing import Seen
from tests.serving.running import running
from tests.serving.scripted_upstream import upstream


def test_embeddings_pass_and_are_counted_but_not_recorded(tmp_path: Path) -> None:
    told: list[Seen] = []
    with upstream() as engine, running(tmp_path, engine.url) as up:
        up.gateway.observers.add(told.append)
        client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0)
        said = client.embeddings.create(
            model="support", input=["where is it?"], encoding_format="float", dimensions=2
        )
        assert said.data[0].embedding == [0.25, -1.5] and said.model == "support-v0"
        sent = engine.requests[-1]
        assert (sent["model"], sent["dimensions"]) == ("base", 2)
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="nobody", input="x")
        with pytest.raises(openai.BadRequestError, match="input"):
            client.embeddings.create(model="support", input=3)  # type: ignore[arg-type]
        assert up.traces() == []
    assert [(seen.end, seen.dialect, seen.input_tokens) for seen in told] == [
        ("answered", "embeddings", 4),
        ("refused", "embeddings", None),
        ("refused", "embeddings", None),
    ]
