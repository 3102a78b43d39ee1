"""Answers of the embedded engine that are held to a form, however little the model knows of it."""

import json
from typing import Any

import httpx
import jsonschema
import pytest

from serving.engines.client import EngineClient

pytestmark = pytest.mark.slow
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["refund", "order"]},
        "urgent": {"type": "boolean"},
        "lines": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["kind", "urgent", "lines"],
    "additionalProperties": False,
}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object", "properties": properties, "required": [*properties],
        "additionalProperties": False,
    }  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("sort", up={"type": "boolean"}), tool("count", of={"enum": ["a", "b"]})]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def schema(of: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}


def ask(http: httpx.Client, **asked: Any) -> httpx.Response:
    body = {"model": "tiny-v1", "messages": [{"role": "user", "content": "3 1 2"}], **asked}
    return http.post("/v1/chat/completions", json=body)


def said(http: httpx.Client, **asked: Any) -> dict[str, Any]:
    answer = ask(http, max_tokens=200, **asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.3, "n": 4, "seed": 5}])
def test_json_of_a_schema_is_that(http: httpx.Client, how: dict[str, Any]) -> None:
    answer = said(http, response_format=schema(SCHEMA), logprobs=True, return_token_ids=True, **how)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
        content = choice["logprobs"]["content"]
        assert len(content) == len(choice["token_ids"])
        assert all(-50 < one["logprob"] <= 0 for one in content)
    assert len({choice["message"]["content"] for choice in answer["choices"]}) <= 4


def test_a_json_object_is_one_also_where_the_answer_is_streamed(http: httpx.Client) -> None:
    body = {
        "model": "base", "messages": [{"role": "user", "content": "3 1 2"}], "stream": True,
        "seed": 1, "max_tokens": 400, "response_format": {"type": "json_object"},
    }  # fmt: skip
    text, finish = "", None
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line[6:])["choices"]
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
    assert text.startswith("{")
    if finish == "stop":  # else it was cut at its longest, as any answer may be
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("choice", ["required", named("count"), named("sort")])
def test_a_tool_that_must_be_called_is(http: httpx.Client, choice: Any) -> None:
    answer = said(http, tools=TOOLS, tool_choice=choice, seed=3, parallel_tool_calls=False)
    (found,) = answer["choices"]
    assert found["finish_reason"] == "tool_calls"
    (call,) = found["message"]["tool_calls"]
    name = call["function"]["name"]
    assert choice == "required" or name == choice["function"]["name"]
    parameters = {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}[name]
    jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)


def test_what_is_held_to_a_form_and_what_is_not_are_answered_in_one_batch(
    http: httpx.Client, client: EngineClient
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def free() -> dict[str, Any]:
        return said(http, seed=11, max_completion_tokens=20)["choices"][0]["message"]

    def held() -> str:
        text = said(http, seed=12, response_format=schema(SCHEMA))["choices"][0]["message"]
        return str(text["content"])

    alone = free(), held()
    with ThreadPoolExecutor(6) as pool:
        some = [pool.submit(one) for one in (free, held) * 3]
        together = [one.result() for one in some]
    assert together == [*alone] * 3


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"response_format": {"type": "grammar"}}, "text, json_object or json_schema"),
        ({"response_format": 7}, "text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "schema must be an object"),
        ({"response_format": schema({"type": "objec"})}, "held to this: .*objec"),
        ({"response_format": {"type": "json_object"}, "tools": TOOLS}, "not both"),
        ({"tools": TOOLS, "tool_choice": named("none such")}, "names no tool"),
        ({"tool_choice": "required"}, "names no tool"),
        ({"tools": TOOLS, "tool_choice": "any"}, "names no tool"),
        ({"presence_penalty": 1}, r"no presence_penalty: .*vLLM"),
    ],
)
def test_what_it_cannot_be_held_to_is_refused_in_words(
    http: httpx.Client, asked: dict[str, Any], why: str
) -> None:
    import re

    answer = ask(http, **asked)
    assert answer.status_code == 400 and re.search(why, answer.json()["error"]["message"])


def test_a_picture_is_refused_in_words(http: httpx.Client) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    answer = ask(http, messages=[{"role": "user", "content": [picture]}])
    assert answer.status_code == 400 and "image" in answer.json()["error"]["message"], answer.text


def test_embeddings_are_refused_in_words(http: httpx.Client) -> None:
    answer = http.post("/v1/embeddings", json={"model": "base", "input": "3 1 2"})
    assert answer.status_code == 404 and "vLLM" in answer.json()["error"]["message"]
