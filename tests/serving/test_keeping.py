"""How much is kept, and how surely: sampling of conversations, strict capture, a disk that lags."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import recording
from serving.limits import Limits
from tests.serving.running import Running, body, running, terms
from tests.serving.scripted_upstream import WORDS, Upstream


def post(gateway: Running, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/chat/completions", content=content, headers=headers)


def follow_up(text: str) -> bytes:
    said = [{"role": "assistant", "content": "".join(WORDS)}, {"role": "user", "content": "and?"}]
    return json.dumps(
        {"model": "support", "messages": [{"role": "user", "content": text}, *said]}
    ).encode()


def test_a_conversation_is_kept_whole_or_not_at_all(tmp_path: Path, engine: Upstream) -> None:
    image = "data:image/png;base64," + "AAAA" * 40
    with running(
        tmp_path,
        engine.url,
        limits=Limits(text=100, inline_image=100),
        terms=terms(capture={"sample": 0.5}),
    ) as up:
        for number in range(16):
            named = {"x-conversation-id": f"c-{number}"} if number % 2 else {}
            text = f"question {number} " + "z" * 200
            first = post(up, body(text), **named)
            second = post(up, follow_up(text), **named)
            picture = {"type": "image_url", "image_url": {"url": f"{image}{number:04}"}}
            content = [{"role": "user", "content": [picture]}]
            third = post(
                up, json.dumps({"model": "support", "messages": content}).encode(), **named
            )
            said = [one.headers.get("x-flywheel-trace-id") for one in (first, second, third)]
            assert said[0] == said[1]
            assert said[2] == said[0] or not named
        traces = up.traces()
        counts = up.gateway.recording.counts
    assert 0 < len({trace.id for trace in traces}) < 24
    assert counts["not_sampled"] == 48 - len(traces)
    # Nothing large of what was not kept was stored.
    inputs = [trace.spans[0].call.input[0] for trace in traces if trace.spans[0].call]
    kept = {getattr(message.parts[0], "digest", None) for message in inputs}
    assert {path.stem for path in tmp_path.joinpath("raw").rglob("*.zst")} == kept


def test_nothing_at_all_is_kept_where_a_project_says_so(tmp_path: Path, engine: Upstream) -> None:
    with running(tmp_path, engine.url, terms=terms(capture={"sample": 0.0})) as up:
        up.home.journal.write_text("nothing can be recorded, and nothing has to be")
        assert "x-flywheel-trace-id" not in post(up, body()).headers
        assert '"stop"' in post(up, body(stream=True)).text


@pytest.mark.parametrize("stream", [False, True])
def test_strict_capture_waits_for_the_disk_before_the_last_byte(
    tmp_path: Path, engine: Upstream, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, sync, synced = threading.Event(), os.fdatasync, []

    def slow(handle: int) -> None:
        may.wait(20)
        synced.append(handle)
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", slow)
    with running(tmp_path, engine.url, terms=terms(capture={"sync": "strict"})) as up:
        answers: list[Any] = []

        def ask() -> None:
            answers.append((post(up, body(stream=stream)).text, len(synced)))

        asking = [threading.Thread(target=ask) for _ in range(6)]
        for one in asking:
            one.start()
        while len(up.traces()) < 6:
            assert not answers
        may.set()
        for one in asking:
            one.join()
        assert all('"stop"' in text and before for text, before in answers)
        assert len(synced) < 6, "those who wait share a sync"


def test_a_disk_that_fails_to_sync_costs_a_strict_project_the_answer(
    tmp_path: Path, engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(handle: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with running(tmp_path, engine.url, terms=terms(capture={"sync": "strict"})) as up:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", broken)
            answer = post(up, body())
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_recorded"
        assert up.gateway.recording.counts["unrecorded"] == 1


@pytest.mark.parametrize("unrecorded", ["refuse", "serve"])
def test_a_disk_that_lags_is_a_full_one(
    tmp_path: Path, engine: Upstream, monkeypatch: pytest.MonkeyPatch, unrecorded: Any
) -> None:
    monkeypatch.setattr(recording, "_BEHIND_S", 0.0)
    may, sync = threading.Event(), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda handle: (may.wait(20), sync(handle)))
    with running(tmp_path, engine.url, limits=Limits(unrecorded=unrecorded)) as up:
        assert post(up, body()).status_code == 200
        answer = post(up, body())
        counts = up.gateway.recording.counts
        if unrecorded == "refuse":
            assert answer.status_code == 503 and "behind" in answer.json()["error"]["message"]
            assert counts["refused_unrecordable"] == 1
        else:
            assert answer.status_code == 200 and counts["recorded_late"] == 1
        may.set()
