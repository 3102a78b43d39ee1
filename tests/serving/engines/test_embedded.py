"""The embedded engine over HTTP, on the tiny model: what it says is exactly what it sampled."""

import asyncio
import concurrent.futures
import json
import math
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.engines.client import EngineClient
from trainer.models import load_base, load_tokenizer
from trainer.render import renderer_for

pytestmark = pytest.mark.slow
IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b"}}
TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"


def ask(text: str, **asked: Any) -> dict[str, Any]:
    return {
        "model": "base",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "logprobs": True,
        "return_token_ids": True,
        **asked,
    }


def chat(http: httpx.Client, text: str, **asked: Any) -> dict[str, Any]:
    answer = http.post("/v1/chat/completions", json=ask(text, **asked))
    assert answer.status_code == 200, answer.text
    return answer.json()


def logprobs(choice: dict[str, Any]) -> list[float]:
    return [token["logprob"] for token in choice["logprobs"]["content"]]


def chunks(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def together(http: httpx.Client, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    def send(body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(
            f"{http.base_url}/v1/chat/completions", json=body, timeout=60, trust_env=False
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(send, bodies))


def test_prompt_and_answer_are_the_renderers_and_counted_exactly(http: httpx.Client) -> None:
    rendering = renderer_for(load_tokenizer(TINY))
    answer = chat(http, "3 1 2", seed=7)
    choice = answer["choices"][0]
    assert rendering.decode(answer["prompt_token_ids"]).endswith("<|im_start|>assistant\n")
    parsed = rendering.parse(choice["token_ids"])
    assert choice["message"] == {"role": "assistant", "content": parsed.message.text}
    assert choice["finish_reason"] == parsed.finish_reason
    counted = len(answer["prompt_token_ids"]), len(choice["token_ids"])
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == counted
    assert answer["usage"]["total_tokens"] == sum(counted)
    assert len(logprobs(choice)) == counted[1]
    said = http.get("/health").json()
    assert said["template_digest"] == rendering.template_digest
    assert said["tokenizer_digest"] == rendering.tokenizer_digest


@pytest.mark.parametrize("model", ["base", "tiny-v1"])
def test_logprobs_are_those_of_the_model_computed_alone(
    http: httpx.Client, adapters: dict[str, Path], model: str
) -> None:
    """In a batch of different prompts, against the plain model without a cache."""
    import torch

    from trainer.models import add_adapter

    plain = load_base(TINY, threads=1).model
    if model != "base":
        add_adapter(plain, "served", adapters[model])
    texts = [" ".join(str((i * k) % 10) for i in range(1, 3 + k)) for k in range(1, 9)]
    bodies = [ask(t, model=model, seed=i, temperature=0.8) for i, t in enumerate(texts)]
    for answer in together(http, bodies):
        choice, prompt = answer["choices"][0], answer["prompt_token_ids"]
        with torch.inference_mode():
            logits = plain(torch.tensor([prompt + choice["token_ids"]])).logits[0]
        expected = (logits[len(prompt) - 1 : -1] / 0.8).log_softmax(-1)
        for row, token, got in zip(expected, choice["token_ids"], logprobs(choice), strict=True):
            assert math.isclose(float(row[token]), got, abs_tol=1e-4)


def test_an_answer_has_the_same_tokens_alone_and_in_a_crowd(http: httpx.Client) -> None:
    alone = chat(http, "5 4 9 1", seed=3)["choices"][0]
    crowd = [ask("5 4 9 1", seed=3), *(ask("1 2 " * (i % 5 + 1), seed=i) for i in range(20))]
    inside = together(http, crowd)[0]["choices"][0]
    assert inside["token_ids"] == alone["token_ids"]
    for one, other in zip(logprobs(inside), logprobs(alone), strict=True):
        assert math.isclose(one, other, abs_tol=1e-4)


def test_a_seed_repeats_and_its_choices_differ(http: httpx.Client) -> None:
    first, again = (chat(http, "2 8 5", seed=11, n=6, temperature=1.5) for _ in range(2))
    ids = [choice["token_ids"] for choice in first["choices"]]
    assert ids == [choice["token_ids"] for choice in again["choices"]]
    assert len({tuple(one) for one in ids}) > 1
    assert [choice["index"] for choice in first["choices"]] == list(range(6))
    assert first["usage"]["completion_tokens"] == sum(map(len, ids))
    assert chat(http, "2 8 5", seed=12, n=6, temperature=1.5)["choices"] != first["choices"]


def test_temperature_zero_takes_the_likeliest_and_reports_the_models_own_logprob(
    http: httpx.Client,
) -> None:
    for token in chat(http, "9 3 4", temperature=0, top_logprobs=3)["choices"][0]["logprobs"][
        "content"
    ]:
        best = token["top_logprobs"][0]
        assert (token["token"], token["logprob"]) == (best["token"], best["logprob"])
        assert len(token["top_logprobs"]) == 3


def test_top_p_and_top_k_keep_only_the_likeliest(http: httpx.Client) -> None:
    for asked in ({"top_k": 1}, {"top_p": 1e-6}):
        choice = chat(http, "9 3 4", seed=1, temperature=2.0, **asked)["choices"][0]
        assert choice["token_ids"] == chat(http, "9 3 4", temperature=0)["choices"][0]["token_ids"]
        assert all(abs(value) < 1e-6 for value in logprobs(choice))


@pytest.mark.parametrize(
    "asked", [{}, {"n": 3}, {"stop": ["2"]}, {"temperature": 3.0, "max_tokens": 40}]
)
def test_a_stream_put_together_is_the_whole_answer(
    http: httpx.Client, asked: dict[str, Any]
) -> None:
    body = ask("4 2 7 1", seed=5, **asked)
    whole = chat(http, "4 2 7 1", seed=5, **asked)
    events = chunks(
        http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}
    )
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["choices"] == []
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for expected in whole["choices"]:
        own = [c for event in events for c in event["choices"] if c["index"] == expected["index"]]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == expected["message"]["content"]
        ids = [token for c in own for token in c.get("token_ids", [])]
        assert ids == expected["token_ids"]
        said = [t["logprob"] for c in own if c["logprobs"] for t in c["logprobs"]["content"]]
        assert said == pytest.approx(logprobs(expected), abs=1e-5)
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == [
            expected["finish_reason"]
        ]


def test_a_stop_string_ends_the_text_before_it(http: httpx.Client) -> None:
    free = chat(http, "4 2 7 1", seed=5)["choices"][0]
    stop = free["message"]["content"][2:4]
    choice = chat(http, "4 2 7 1", seed=5, stop=[stop, "never"])["choices"][0]
    assert choice["message"]["content"] == free["message"]["content"].split(stop)[0]
    assert choice["finish_reason"] == "stop"
    kept = choice["token_ids"]
    assert kept == free["token_ids"][: len(kept)] and len(kept) < len(free["token_ids"])


def test_tool_calls_are_parsed_out_of_what_was_sampled(http: httpx.Client) -> None:
    """The tiny model calls no tools: its own text must come back as text, streamed or not."""
    tool = {"type": "function", "function": {"name": "sort", "parameters": {"type": "object"}}}
    whole = chat(http, "3 1", seed=2, tools=[tool])
    assert whole["choices"][0]["message"].get("tool_calls") is None
    assert whole["usage"]["prompt_tokens"] > chat(http, "3 1", seed=2)["usage"]["prompt_tokens"]
    events = chunks(http, "/v1/chat/completions", ask("3 1", seed=2, tools=[tool]))
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    assert text == whole["choices"][0]["message"]["content"]


def test_adapters_answer_as_themselves_whoever_else_runs(
    http: httpx.Client, client: EngineClient, adapters: dict[str, Path]
) -> None:
    models = ["base", "tiny-v1", "tiny-v2"]
    prompt = chat(http, "6 5 4 3", seed=1)["prompt_token_ids"]
    answer = chat(http, "6 5 4 3", seed=1)["choices"][0]["token_ids"]
    alone = {model: client.logprobs(model, prompt, answer) for model in models}
    assert max(abs(a - b) for a, b in zip(alone["base"], alone["tiny-v1"], strict=True)) > 0.01
    bodies = [ask("6 5 4 3", model=models[i % 3], seed=i) for i in range(24)]
    for body, got in zip(bodies, together(http, bodies), strict=True):
        choice = got["choices"][0]
        expected = client.logprobs(body["model"], prompt, choice["token_ids"])
        assert logprobs(choice) == pytest.approx(expected, abs=1e-4)


def gang(http: httpx.Client, name: str, count: int = 12) -> list[Any]:
    bodies = [
        ask(
            " ".join(str((i // 3 + k) % 10) for k in range(4 + i // 6)),
            seed=i,
            temperature=1.0,
            flywheel_gang={"id": name, "size": count},
            model="tiny-v1",
        )
        for i in range(count)
    ]
    answers = together(http, bodies)
    return [(a["choices"][0]["token_ids"], logprobs(a["choices"][0])) for a in answers]


def test_a_gang_gives_the_same_bits_with_and_without_live_traffic(http: httpx.Client) -> None:
    quiet = gang(http, "a")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        live = pool.submit(
            together, http, [ask(f"{i} 3 1", seed=i, model="tiny-v1") for i in range(16)]
        )
        other = pool.submit(gang, http, "b", 5)
        busy = gang(http, "c")
        live.result()
        other.result()
    assert busy == quiet
    assert gang(http, "a") == quiet, "an id may come again"


def test_a_gang_is_larger_than_a_batch(http: httpx.Client) -> None:
    assert gang(http, "large", 80) == gang(http, "large again", 80)


def test_a_gangs_members_must_agree(http: httpx.Client) -> None:
    async def both() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as client:
            first = asyncio.create_task(
                client.post(
                    "/v1/chat/completions", json=ask("1", flywheel_gang={"id": "d", "size": 2})
                )
            )
            await asyncio.sleep(0.3)
            second = await client.post(
                "/v1/chat/completions", json=ask("1", flywheel_gang={"id": "d", "size": 3})
            )
            third = await client.post(
                "/v1/chat/completions", json=ask("1", flywheel_gang={"id": "d", "size": 2})
            )
            return [await first, second, third]

    assert [answer.status_code for answer in asyncio.run(both())] == [200, 400, 200]


def running(http: httpx.Client) -> int:
    state = http.get("/health").json()
    return int(state["running"] + state["waiting"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_frees_its_place(http: httpx.Client, stream: bool) -> None:
    body = ask("1 2 3", ignore_eos=True, max_tokens=480, n=8, stream=stream)

    async def hang_up() -> None:
        async with httpx.AsyncClient(base_url=http.base_url, trust_env=False) as client:
            task = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            while running(http) == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(hang_up())
    deadline = time.monotonic() + 30
    while running(http) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(http) == 0


def test_a_prefix_that_many_share_is_kept_and_changes_nothing(http: httpx.Client) -> None:
    system = {"role": "system", "content": "Sort the digits. " + "1 2 3 4 5 " * 8}
    answers = []
    for index in range(5):
        user = {"role": "user", "content": f"9 {index} 7"}
        answers.append(chat(http, "", messages=[system, user], seed=1, temperature=0.5))
    assert http.get("/health").json()["prefix_tokens"] > 0
    again = chat(
        http,
        "",
        messages=[system, {"role": "user", "content": "9 0 7"}],
        seed=1,
        temperature=0.5,
    )
    assert again["choices"][0]["token_ids"] == answers[0]["choices"][0]["token_ids"]
    assert logprobs(again["choices"][0]) == pytest.approx(
        logprobs(answers[0]["choices"][0]), abs=1e-4
    )


def test_completions_score_prompts_as_vllm_does(http: httpx.Client, client: EngineClient) -> None:
    ids = chat(http, "3 1 2", seed=7)["prompt_token_ids"]
    body = {
        "model": "base", "prompt": [ids, ids[:5]], "max_tokens": 0, "prompt_logprobs": 2,
        "echo": True, "logprobs": 1, "return_token_ids": True,
    }  # fmt: skip
    answer = http.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 0
    for choice, prompt in zip(answer["choices"], (ids, ids[:5]), strict=True):
        scored = choice["prompt_logprobs"]
        assert scored[0] is None and len(scored) == len(prompt)
        assert choice["logprobs"]["token_logprobs"][0] is None
        for token, entry in zip(prompt[1:], scored[1:], strict=True):
            best = max(entry.values(), key=lambda one: one["logprob"])
            assert best["rank"] == 1 and str(token) in entry
    scores = client.logprobs("base", ids[:3], ids[3:])
    scored_whole = answer["choices"][0]["prompt_logprobs"][3:]
    expected = [e[str(t)]["logprob"] for t, e in zip(ids[3:], scored_whole, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-5)


def test_completions_take_text_and_stream(http: httpx.Client) -> None:
    body = {"model": "base", "prompt": "3 1 2", "max_tokens": 8, "seed": 4, "logprobs": 0}
    whole = http.post("/v1/completions", json=body).json()
    events = chunks(http, "/v1/completions", body)
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    assert text == whole["choices"][0]["text"]
    assert len(whole["choices"][0]["logprobs"]["tokens"]) == 8


def test_generate_gives_ids_and_logprobs(client: EngineClient) -> None:
    first, second = client.generate("base", [1, 35, 36], max_tokens=6, n=2, seed=1)
    assert len(first.token_ids) == len(first.logprobs) <= 6
    assert first != second


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"model": "absent"}, "absent"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"messages": [{"content": "x"}]}, "role"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [IMAGE],
                    }
                ]
            },
            "image",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"top_logprobs": 50}, "top_logprobs"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "1 " * 2000}]}, "512"),
        ({"flywheel_gang": {"id": "", "size": 2}}, "flywheel_gang"),
        ({"flywheel_gang": {"id": "x", "size": 0}}, "flywheel_gang"),
        ({"messages": [{"role": "user", "content": "a\0b"}]}, "NUL"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(
    http: httpx.Client, change: dict[str, Any], names: str
) -> None:
    answer = http.post("/v1/chat/completions", json={**ask("1 2"), **change})
    assert answer.status_code == (404 if change.get("model") == "absent" else 400), answer.text
    error = answer.json()["error"]
    assert names in error["message"] or names in (error["param"] or "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a":' * 9999,
        b'{"model":"base","messages":"\\ud83d"}',
    ],
    ids=["empty", "cut", "list", "null", "bytes", "deep", "surrogate"],
)
@pytest.mark.parametrize(
    "path", ["chat/completions", "completions", "load_lora_adapter", "unload_lora_adapter"]
)
def test_bytes_that_are_no_request_are_answered_400(
    http: httpx.Client, path: str, body: bytes
) -> None:
    assert http.post(f"/v1/{path}", content=body).status_code == 400


def test_other_bad_completions_are_answered_400(http: httpx.Client) -> None:
    for prompt in ([], [[]], "", [1, "a"], [[1], "a"], [10**6], [-1], [1.5], {"a": 1}, [[True]]):
        body = {"model": "base", "prompt": prompt, "max_tokens": 1}
        assert http.post("/v1/completions", json=body).status_code == 400, prompt


def test_a_huge_body_is_refused(http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", content=b" " * (33 * 2**20)).status_code == 413


def test_unknown_routes_fields_and_foreign_hosts(http: httpx.Client) -> None:
    assert http.get("/v1/nothing").status_code == 404
    assert http.get("/v1/chat/completions").status_code == 405
    assert http.post("/v1/chat/completions", json=ask("1", nobody_knows=1)).status_code == 200
    assert http.get("/health", headers={"host": "example.org"}).status_code == 400


def test_the_answer_is_cut_where_the_context_ends(http: httpx.Client) -> None:
    answer = chat(http, "1 2 3", max_tokens=100_000, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 512
    assert answer["choices"][0]["finish_reason"] == "length"


def test_too_many_at_once_are_told_to_come_again(http: httpx.Client) -> None:
    body = ask("1 2 3", n=64, ignore_eos=True, max_tokens=40, logprobs=False)

    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            base_url=http.base_url, trust_env=False, timeout=120
        ) as client:
            return await asyncio.gather(
                *(client.post("/v1/chat/completions", json=body) for _ in range(8))
            )

    answers = asyncio.run(flood())
    refused = [answer for answer in answers if answer.status_code != 200]
    assert refused and len(refused) < 8
    assert all(a.status_code == 429 and int(a.headers["retry-after"]) > 0 for a in refused)


def test_the_official_client_drives_it(http: httpx.Client) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none")
    assert "tiny-v1" in {model.id for model in client.models.list()}
    answer = client.chat.completions.create(
        model="tiny-v1",
        messages=[{"role": "user", "content": "3 1 2"}],
        max_completion_tokens=8,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None and answer.usage.completion_tokens <= 8
    stream = client.chat.completions.create(
        model="base",
        messages=[{"role": "user", "content": "3 1 2"}],
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    assert list(stream)[-1].usage is not None
    with pytest.raises(openai.NotFoundError, match="absent"):
        client.chat.completions.create(model="absent", messages=[{"role": "user", "content": "1"}])
