"""Rows of the store's tables as the traces that they were made of (see `storage.columns`).

Enter rows as dictionaries, and the JSON of messages and tools; leaves each trace as merged.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from flywheel.records import (
    Choice,
    Experts,
    Message,
    ModelCall,
    Span,
    Tokens,
    Trace,
    Usage,
)
from storage.columns import SpanRest
from storage.merge import settled

_messages = msgspec.json.Decoder(Message)
_toolsets = msgspec.json.Decoder(tuple[dict[str, Any], ...])
_rests = msgspec.json.Decoder(SpanRest)
_attributes = msgspec.json.Decoder(dict[str, Any])


def assemble(
    traces: Iterable[dict[str, Any]],
    spans: Iterable[dict[str, Any]],
    tokens: Iterable[dict[str, Any]],
    messages: Iterable[tuple[str, str]],
    toolsets: Iterable[tuple[str, str]],
) -> Iterator[tuple[Trace, dict[str, str]]]:
    """Traces of their rows, in the order of `traces`, each with its copied spans (see `merge`)."""
    words = {key: _messages.decode(body) for key, body in messages}
    tools = {key: _toolsets.decode(body) for key, body in toolsets}
    sampled: dict[tuple[str, str, int], Tokens] = {
        (row["trace_id"], row["span_id"], row["choice"]): _tokens_of(row) for row in tokens
    }
    parts: dict[str, list[Span]] = {}
    copied: dict[str, dict[str, str]] = {}
    for row in spans:
        parts.setdefault(row["trace_id"], []).append(_span_of(row, words, tools, sampled))
        if row["copy_of"] is not None:
            copied.setdefault(row["trace_id"], {})[row["id"]] = row["copy_of"]
    for row in traces:
        found = sorted(parts.get(row["id"], ()), key=lambda span: (span.start or 0, span.id))
        yield _trace_of(row, tuple(found)), copied.get(row["id"], {})


def _trace_of(row: dict[str, Any], spans: tuple[Span, ...]) -> Trace:
    same = ("id", "project", "source", "external_id", "origin", "conversation", "problem_id",
            "run_id", "attempt", "raw", "fidelity", "tenant", "consent", "expires")  # fmt: skip
    return Trace(
        **{name: row[name] for name in same},
        user=row["user_id"],
        fidelity_reasons=tuple(row["fidelity_reasons"]),
        spans=spans,
        attributes=_attributes.decode(row["rest"]) if row["rest"] else {},
    )


def _span_of(
    row: dict[str, Any],
    words: dict[str, Message],
    tools: dict[str, tuple[dict[str, Any], ...]],
    sampled: dict[tuple[str, str, int], Tokens],
) -> Span:
    rest = _rests.decode(row["rest"]) if row["rest"] else SpanRest()
    call = None
    if row["input"] is not None:
        choices = zip(row["output"], row["finish_reasons"], strict=True)
        call = ModelCall(
            input=tuple([words[key] for key in row["input"]]),
            choices=tuple([
                Choice(message=words[key], finish_reason=reason,
                       tokens=sampled.get((row["trace_id"], row["id"], number)))
                for number, (key, reason) in enumerate(choices)
            ]),
            tools=None if row["tools"] is None else tools[row["tools"]],
            sampling=rest.sampling,
            usage=Usage(
                input_tokens=row["input_tokens"], cached_input_tokens=row["cached_input_tokens"],
                output_tokens=row["output_tokens"], reasoning_tokens=row["reasoning_tokens"],
                reason=rest.usage_reason, cache_write_tokens=rest.cache_write_tokens,
            ),
            **{name: row[name] for name in (
                "model", "response_model", "deployment", "routing_probability", "cost_usd", "cached"
            )},
        )  # fmt: skip
    return settled(
        Span(
        id=row["id"], kind=row["kind"], name=row["name"], parents=tuple(row["parents"]),
        start=row["started"], end=row["ended"], error=row["error"], version=row["version"],
        call=call, tool=rest.tool, result=rest.result, attributes=rest.attributes,
        parts=rest.parts,
    ))  # fmt: skip


def _tokens_of(row: dict[str, Any]) -> Tokens:
    return Tokens(
        prompt_ids=tuple(row["prompt_ids"]),
        completion_ids=tuple(row["completion_ids"]),
        logprobs=None if row["logprobs"] is None else tuple(row["logprobs"]),
        policy_versions=tuple(row["policy_versions"]),
        template_digest=row["template_digest"],
        tokenizer_digest=row["tokenizer_digest"],
        experts=row["experts"] and msgspec.msgpack.decode(row["experts"], type=Experts),
    )
