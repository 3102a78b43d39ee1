"""The sections of flywheel.toml about who answers, what is kept of it, and who may ask how much.

Of a server for several projects the first one's [serving] holds; [capture], [limits], [release] and
[providers] are each project's own.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from flywheel.section import Section, Url


class ServingSection(Section):
    engine: Literal["embedded", "vllm"] = "embedded"
    """What runs the model: our own small torch engine, or vLLM (`make install-vllm`)."""
    engine_url: Url | None = None
    """A vLLM that somebody else runs, without /v1; None = we start and keep one."""
    engine_urls: tuple[Url, ...] = ()
    """Several of them with one base model: the least loaded answers, a conversation stays where its
    prefix is cached. Goes before `engine_url`."""
    replicas: int = Field(1, ge=1, le=64)
    """Engines of our own that are started; likewise."""
    preset: str | None = None
    """A set of vLLM arguments for GPUs, by name. None = one engine as it is."""
    workers: int = Field(1, ge=1, le=64)
    """Gateway processes behind the one port."""
    log: Literal["text", "json"] = "text"
    """Form of the server's log: lines for people, or one JSON object a line."""
    otlp_traces: Url | None = None
    """Where a span of each request is sent as OTLP, with its path: http://host:4318/v1/traces.
    None = nowhere. No text of requests or answers is in it."""
    tls_cert: Path | None = None
    """PEM file with the certificate and its chain; None = plain HTTP."""
    tls_key: Path | None = None
    """PEM file with its key."""
    first: str | None = None
    """Who answers until the first promotion: a name of [providers]; None = the base model."""
    fallbacks: tuple[str, ...] = ()
    """Who answers where the champion fails, in order: `previous`, `base`, a name of
    [providers]."""
    fallback_after_s: float | None = Field(None, gt=0)
    """Seconds without a first byte after which the next one is asked; None = only on errors."""
    device: Literal["cpu", "gpu"] = "cpu"
    """Of vLLM."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of vLLM's weights; it sets the logprob check's tolerance."""
    gpu_memory: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory that vLLM takes; less where the trainer has the same GPU."""
    adapters: int = Field(4, ge=1, le=1024)
    """Adapters that vLLM answers with in one batch, and twice as many that it keeps in memory: four
    for one project (champion, previous, challenger, candidate); of several as many as are asked at
    one time."""
    max_rank: int = Field(16, ge=1)
    """Largest adapter rank that vLLM makes room for."""
    host: str = "127.0.0.1"
    """Of the gateway; wider than this machine needs keys."""
    port: int = Field(8000, ge=0, le=65535)
    """Of the gateway; 0 = a free one."""
    max_tokens: int = Field(512, ge=1)
    """Longest answer that a request may ask for."""
    context: int = Field(2048, ge=16)
    """Longest prompt and answer together, in tokens."""
    max_choices: int = Field(8, ge=1)
    """Most answers (`n`) that one request may ask for."""
    max_concurrent: int = Field(64, ge=1)
    """Requests in work at one time; one more waits for its turn, within [limits] queue."""
    speculate: bool = False
    """vLLM guesses tokens ahead from what was said before: the same answers, sooner where they
    quote their prompt. For all models of the engine; the embedded one does it for single versions
    (`flywheel variant --speculate`)."""
    unrecorded: Literal["refuse", "serve"] = "refuse"
    """What becomes of a request that cannot be recorded, because the disk is full: it is refused
    before anything is spent on it, or it is served and counted as unrecorded."""


class RedactionRule(Section):
    pattern: str
    """A regular expression; what it matches never touches the disk."""
    replace: str = "[redacted]"
    """What stands there instead."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return value


class CaptureSection(Section):
    sync: Literal["grouped", "strict"] = "grouped"
    """When an answer is on the disk: `grouped`, within 50 ms of its last byte (a process that is
    killed loses nothing, a power cut at most that); `strict`, before its last byte."""
    sample: float = Field(1.0, ge=0, le=1)
    """Share of conversations that are kept; a conversation is kept whole or not at all."""
    redact: tuple[RedactionRule, ...] = ()
    """Applied before anything is written. Token ids of what was redacted are not kept."""
    stitch: bool = True
    """Whether a request that repeats a conversation's messages goes on with its trace, where the
    caller names no conversation."""


class LimitsSection(Section):
    requests_per_minute: int | None = Field(None, ge=1)
    """Of all the project's callers together; None = no limit."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Prompts and answers together."""
    concurrent: int | None = Field(None, ge=1)
    """Requests at one time, those that wait for the engine included."""
    weight: float = Field(1.0, gt=0, le=1000)
    """Share of the engine where several projects want it at once: twice the weight, twice the
    tokens."""
    queue: int = Field(256, ge=0)
    """Requests that wait for the engine; one more is told to come again."""


class ReleaseSection(Section):
    canary: float | None = Field(None, gt=0, lt=1)
    """Share of the requests that a candidate answers before it is promoted, once the learning gate
    let it; None = it is promoted at once."""
    shadow: float | None = Field(None, gt=0, le=1)
    """Share of the requests that a candidate answers unseen first; None = none."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of each verdict on a canary, whenever one looks."""
    margin: float = Field(0.0, ge=0)
    """Mean reward by which a candidate may be worse and still be promoted; 0: it must be better."""
    min_requests: int = Field(50, ge=1)
    """Answers of the candidate before it can be promoted."""
    max_requests: int = Field(5000, ge=1)
    """Graded answers of the candidate after which a canary ends for want of evidence."""
    max_hours: float = Field(72.0, gt=0)
    """After which it ends likewise."""
    errors: float = Field(0.02, gt=0, le=1)
    """Guard rail: share of failed answers by which the candidate may be worse than the champion."""
    refusals: float = Field(0.05, gt=0, le=1)
    """The same of refusals."""
    broken: float = Field(0.02, gt=0, le=1)
    """The same of broken answers: no JSON where it was asked for, bad tool calls, empty ones."""
    latency: float = Field(1.5, gt=1)
    """How many times the champion's its latency may be."""
    cost: float = Field(2.0, gt=1)
    """How many times the champion's an answer's cost, or its tokens, may be."""


class PriceSection(Section):
    """By the name of a provider's model, of a deployment (`support-v3`), or of the project, for all
    that it serves itself. Dollars a million tokens."""

    input: float = Field(ge=0)
    """Of prompts."""
    cached: float | None = Field(None, ge=0)
    """Of prompt tokens that were read from a cache; None = as `input`."""
    cache_write: float | None = Field(None, ge=0)
    """Of prompt tokens that were written to one; None = as `input`."""
    output: float = Field(ge=0)
    """Of answers, reasoning included."""


ProviderName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
"""a-z, 0-9 and -, a letter first."""


class ProviderSection(Section):
    url: Url
    """With its version, as the vendor writes it: https://api.example.com/v1."""
    model: str
    """As the vendor names it."""
    protocol: Literal["openai", "anthropic"] = "openai"
    """Which of the two it speaks; it is translated where a client speaks the other."""
    key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Environment variable with its key."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Sent with each request; no secrets here."""
    timeout_s: float = Field(300.0, gt=0)
    """Until its first byte, and between two of them."""
    price_input: float | None = Field(None, ge=0)
    """Dollars a million prompt tokens; None = not known, and so are costs."""
    price_cached: float | None = Field(None, ge=0)
    """Of those read from the vendor's cache; None = as `price_input`."""
    price_cache_write: float | None = Field(None, ge=0)
    """Of those written to it; None = as `price_input`."""
    price_output: float | None = Field(None, ge=0)
    """Dollars a million tokens of answers, reasoning included."""
