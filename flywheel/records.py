"""The records that cross every hot path: traces and their parts, grades, feedback, problems.

Frozen msgspec Structs. A record names its predecessor by id, so lineage is a chain. A value that is
not known is None, with a reason beside it where the reader needs one; it is never 0.
Times are integers: nanoseconds since the Unix epoch, UTC.
"""

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from flywheel.ids import digest


class Record(Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


# --- messages: a superset of the OpenTelemetry GenAI message model ------------------------------


class Text(Record, frozen=True, kw_only=True, tag="text"):
    text: str


class Reasoning(Record, frozen=True, kw_only=True, tag="reasoning"):
    text: str
    signature: str | None = None


class ToolCall(Record, frozen=True, kw_only=True, tag="tool_call"):
    name: str
    arguments: str
    """The JSON text as the model wrote it, valid or not."""
    id: str | None = None


class ToolResult(Record, frozen=True, kw_only=True, tag="tool_result"):
    content: str
    id: str | None = None
    """The id of the call that it answers."""
    name: str | None = None
    is_error: bool | None = None


class Image(Record, frozen=True, kw_only=True, tag="image"):
    url: str | None = None
    """Where the image is; None where only its bytes' digest was kept."""
    digest: str | None = None
    """Key of the bytes in the raw store."""
    media_type: str | None = None


class File(Record, frozen=True, kw_only=True, tag="file"):
    name: str | None = None
    digest: str | None = None
    media_type: str | None = None
    url: str | None = None


class Refusal(Record, frozen=True, kw_only=True, tag="refusal"):
    text: str


class Unknown(Record, frozen=True, kw_only=True, tag="unknown"):
    kind: str
    raw: Any
    """Kept as it came."""


class Truncated(Record, frozen=True, kw_only=True, tag="truncated"):
    """Stands where a field was over the size limit. Such a message is never a training target."""

    kept: str
    size: int
    """Bytes of the original."""
    digest: str
    """Key of the original in the raw store."""


Part: TypeAlias = (
    Text | Reasoning | ToolCall | ToolResult | Image | File | Refusal | Unknown | Truncated
)


class Message(Record, frozen=True, kw_only=True):
    role: str
    """system, developer, user, assistant or tool; another role is kept as it came."""
    parts: tuple[Part, ...] = ()
    """Empty = content was null. Content "" is one Text with ""."""
    name: str | None = None

    @property
    def text(self) -> str:
        """All plain text parts, joined; "" where there is none."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


def say(role: str, text: str) -> Message:
    """A message of one plain text."""
    return Message(role=role, parts=(Text(text=text),))


# --- the second stream --------------------------------------------------------------------------


UNKNOWN_EXPERT = 65535


class Experts(Record, frozen=True, kw_only=True):
    """The experts that a mixture model's routers took at each token."""

    layers: int
    """That have experts."""
    top_k: int
    data: bytes
    """[tokens, layers, top_k] of unsigned 16 bit little-endian indices. UNKNOWN_EXPERT = not known
    there."""


class Tokens(Record, frozen=True, kw_only=True):
    """What was really sampled, parallel to one choice's message. Never re-derived from text."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    """Of each sampled token under the policy that sampled it (after temperature). Parallel to
    completion_ids. None = the engine gave none."""
    policy_versions: tuple[str, ...] = ()
    """Deployment names that sampled it, oldest first; one for all tokens where there is one."""
    template_digest: str | None = None
    tokenizer_digest: str | None = None
    experts: Experts | None = None
    """Of prompt and completion. None = no mixture model, or the engine did not say."""


class Usage(Record, frozen=True, kw_only=True):
    """As the engine said it; None = it did not say."""

    input_tokens: int | None = None
    """All prompt tokens, cached ones included, whatever the vendor's convention."""
    cached_input_tokens: int | None = None
    """Of them, those read from the vendor's cache."""
    cache_write_tokens: int | None = None
    """Of them, those written to it; None = none, or not said."""
    output_tokens: int | None = None
    """All completion tokens, reasoning included."""
    reasoning_tokens: int | None = None
    reason: str | None = None
    """Why the numbers are None."""


class Sampling(Record, frozen=True, kw_only=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    other: dict[str, Any] = field(default_factory=dict)
    """What else the caller asked for (penalties, response_format, tool_choice …), as it came."""


class Choice(Record, frozen=True, kw_only=True):
    message: Message
    finish_reason: str | None = None
    """stop, length, tool_calls, content_filter …; None = the stream was cut or it was not said."""
    tokens: Tokens | None = None


class ModelCall(Record, frozen=True, kw_only=True):
    input: tuple[Message, ...]
    choices: tuple[Choice, ...] = ()
    """Empty = no answer came; the span's `error` says why."""
    tools: tuple[dict[str, Any], ...] | None = None
    """OpenAI tool schemas. None = not recorded; () = recorded, none offered."""
    model: str | None = None
    """As requested."""
    response_model: str | None = None
    deployment: str | None = None
    """The deployment's name that answered (`project-vN`); None outside our gateway."""
    routing_probability: float | None = None
    sampling: Sampling = Sampling()
    usage: Usage = Usage(reason="not reported")
    cost_usd: float | None = None
    cached: bool | None = None
    """True = answered from a cache: cost is 0, tokens are kept."""


SpanKind: TypeAlias = Literal["agent", "model", "tool", "other"]


class Span(Record, frozen=True, kw_only=True):
    id: str
    kind: SpanKind
    name: str = ""
    parents: tuple[str, ...] = ()
    """Span ids in this trace. () = root. A parent that never came leaves the trace incomplete."""
    start: int | None = None
    end: int | None = None
    error: str | None = None
    call: ModelCall | None = None
    """Of a model span."""
    tool: ToolCall | None = None
    """Of a tool span: the call as it was run."""
    result: ToolResult | None = None
    version: int = 0
    """The sender's version of this span; a higher one wins, an equal one by content hash."""
    parts: dict[str, int] = field(default_factory=dict)
    """Of a span that is told in parts: the fields that this part knows ("end", "call.input"), each
    with its version. {} = it is whole, and stands above any part of it."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What the format said and no field above holds."""


Consent: TypeAlias = Literal["granted", "denied"]
Origin: TypeAlias = Literal["production", "import", "demonstration", "rollout", "evaluation"]
Fidelity: TypeAlias = Literal["trainable", "renderable", "view_only"]


class Trace(Record, frozen=True, kw_only=True):
    """One conversation or episode, whole or in part; the committer merges parts of one id."""

    id: str
    """`trace_id(project, source, external_id)`."""
    project: str
    source: str
    """One sending system: "gateway", "rollout:<run>", "import:<name>" …"""
    external_id: str
    """The sender's own id."""
    origin: Origin
    spans: tuple[Span, ...] = ()
    conversation: str | None = None
    user: str | None = None
    tenant: str | None = None
    """Whose data it is, of those who share a project: a customer, an organisation."""
    consent: Consent | None = None
    """Whether it may be learnt from, as its sender said; a refusal stands above a yes. None = not
    said: the project's [retention] decides."""
    expires: int | None = None
    """When it must be gone, as its sender said; the earliest stands. None = by [retention]."""
    problem_id: str | None = None
    """Of a rollout."""
    run_id: str | None = None
    """The run that made this rollout or evaluation."""
    attempt: int | None = None
    """k of a rollout: which of the samples of its problem."""
    raw: str | None = None
    """Key of the bytes it came from, in the raw store."""
    fidelity: Fidelity | None = None
    """Set by the store when it merges, from what the spans hold."""
    fidelity_reasons: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)


def trace_id(project: str, source: str, external_id: str) -> str:
    return digest(project, source, external_id)


def model_spans(trace: Trace) -> list[Span]:
    """The model calls, in order of time (unknown times first, then by id)."""
    calls = [span for span in trace.spans if span.call is not None]
    if len(calls) < 2:
        return calls
    return sorted(calls, key=lambda span: (span.start or 0, span.id))


def main_spans(trace: Trace) -> list[Span]:
    """The same without what sub-agents and summaries asked: calls right under an agent span that
    is `aside` are no answers of the trace."""
    aside = {
        span.id for span in trace.spans if span.kind == "agent" and span.attributes.get("aside")
    }
    calls = model_spans(trace)
    return [span for span in calls if aside.isdisjoint(span.parents)] if aside else calls


def last_answer(trace: Trace) -> Choice | None:
    """The first choice of the last model call that has one, asides apart; None where the model
    never answered."""
    call = last_call(trace)
    return call.choices[0] if call else None


def last_call(trace: Trace) -> ModelCall | None:
    """The model call that gave the trace's last answer; None where the model never answered."""
    for span in reversed(main_spans(trace)):
        if span.call and span.call.choices:
            return span.call
    return None


# --- what arrives about a trace -----------------------------------------------------------------


class Grade(Record, frozen=True, kw_only=True):
    trace_id: str
    reward: str
    """The reward's name."""
    value: float | None
    """None = could not be given; 0.0 = graded zero."""
    weight: float = 1.0
    """0 = a metric: looked at, never trained on."""
    reason: str | None = None
    """Why the value is None, or what a judge said."""
    kind: Literal["code", "judge", "human", "feedback"] = "code"
    grader: str = ""
    """Digest of the code, judge or rubric that gave it."""
    problem_id: str | None = None
    span_id: str | None = None
    """Set for a process reward."""
    confirmed_by: str | None = None
    """What outside the model this rests on ("feedback", "ground_truth", "code", "human"). None =
    nothing outside the model."""
    at: int = 0
    """When it was given. A later grade supersedes an earlier one of the same id; at the same moment
    the greater content hash wins."""

    @property
    def id(self) -> str:
        return digest(self.trace_id, self.span_id, self.reward, self.grader, self.problem_id)


class Feedback(Record, frozen=True, kw_only=True):
    """What people or systems said later, perhaps before the trace came."""

    project: str
    target: str
    """The id that the sender knows: a trace id of ours, a conversation id, or a response id."""
    target_kind: Literal["trace", "conversation", "span", "episode"] = "trace"
    name: str = "outcome"
    value: Any = None
    """bool, number, string or JSON (a demonstration: the right answer; a preference: the response
    ids `{"chosen": …, "rejected": …}`)."""
    kind: Literal["boolean", "number", "category", "text", "demonstration", "preference"] = "text"
    by: str | None = None
    """Who said it."""
    at: int = 0
    """When it was said. A later one supersedes an earlier one of the same (project, target,
    target_kind, name, by); at the same moment the greater id wins."""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return digest(self)


class Problem(Record, frozen=True, kw_only=True):
    """One item of an environment."""

    environment: str
    messages: tuple[Message, ...]
    """The prompt, whole."""
    answer: Any = None
    """The truth that rewards compare with; None = not known."""
    tools: tuple[dict[str, Any], ...] = ()
    split: Literal["train", "heldout"] = "train"
    slice: str = "all"
    """The group that the evaluation reports and may veto by."""
    text: str = ""
    """The user's own words, without what all prompts share: what leakage is judged by."""
    conversation: str | None = None
    user: str | None = None
    trace_id: str | None = None
    """The recorded trace it was mined from."""
    truth_from: str | None = None
    """Where the answer comes from: "feedback", "ground_truth" …"""
    key: str = ""
    """Tells problems of one prompt apart, where what differs is not shown to the model (a simulated
    user's scenario, a workspace)."""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        apart = (self.key,) if self.key else ()
        return digest(self.environment, self.messages, self.tools, *apart)
