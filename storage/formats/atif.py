"""ATIF trajectories (Harbor and others): a session's steps, its continuations and its sub-agents.

A session that was continued is several documents under one session id; what a summary asked of
others are documents of their own, named after it. All are parts of one trace: ids are made of
session, continuation and step, so that the parts meet in any order. Copied steps are heard only.
"""

import re
from typing import Any

import msgspec

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import (
    Choice,
    Message,
    Part,
    Reasoning,
    Span,
    Tokens,
    ToolCall,
    ToolResult,
    Usage,
)  # fmt: skip
from storage.span_parts import part

from .completed import cost_of
from .episode import Episode, Past, imported
from .messages import answered, name_of, read_tools
from .nested import fields_of
from .parsed import Context, Parsed, Rest
from .parts import arguments_text, read_parts
from .times import nanoseconds
from .usage import count, settle

SOURCE = "import:atif"

_DOCUMENT = frozenset(("schema_version", "session_id", "trajectory_id", "agent", "steps",
                       "final_metrics", "subagent_trajectories"))  # fmt: skip
_AGENT = frozenset(("name", "version", "model_name", "tool_definitions"))
_STEP = frozenset(("step_id", "timestamp", "source", "message", "model_name", "reasoning_content",
                   "tool_calls", "observation", "metrics", "is_copied_context",
                   "llm_call_count"))  # fmt: skip
_METRICS = frozenset(("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd",
                      "prompt_token_ids", "completion_token_ids", "logprobs"))  # fmt: skip
_CALL = frozenset(("tool_call_id", "function_name", "arguments"))
_RESULT = frozenset(("source_call_id", "content", "subagent_trajectory_ref"))
_derived = re.compile(r"(.+?)(?:-cont-(\d+))?(-summarization-\d+-\w+)?")


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or not isinstance(sample.get("steps"), list):
        return False
    version = sample.get("schema_version")
    return isinstance(version, str) and version.upper().startswith("ATIF")


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    session = row.get("session_id") or row.get("trajectory_id")
    if not isinstance(session, str) or not session:
        session = digest(row.get("agent"), fields_of(row).get("steps"))
    found = _derived.fullmatch(session)
    base = found.group(1) if found else session
    name = fields_of(row.get("agent")).get("name")
    spans = _document(row, session, base, rest)
    return Parsed([imported(SOURCE, f"{name}:{base}", spans, context)], [], rest.counts)


def agent_id(session: str) -> str:
    return f"agent-{session}"


def _document(
    row: dict[str, Any], session: str, base: str, rest: Rest, *, embedded: bool = False
) -> tuple[Span, ...]:
    agent = fields_of(row.get("agent"))
    index = _continuation(agent, session)
    inner = embedded or "-summarization-" in session.removeprefix(base)
    prefix = f"-{digest(session)[:8]}-{index:02d}" if inner else f"{index:02d}"
    episode = Episode(model=str(agent.get("model_name") or "") or None)
    if agent.get("tool_definitions") is not None:
        episode.tools = read_tools(agent["tool_definitions"], rest, "agent.tool_definitions")
    own = _root(row, agent, index, rest)
    owner = agent_id(session if inner else base)
    episode.parents = (owner,)
    steps = row.get("steps")
    for at, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, dict):
            raise BadRecord(f"is {name_of(step)}, not a step", field=f"steps[{at}]")
        number = step.get("step_id")
        number = number if isinstance(number, int) and 0 <= number < 10**6 else at + 1
        _Step(episode, step, f"{prefix}-{number:06d}", rest).read()
    if not episode.last:
        episode.answer((), id=f"{prefix}-end", error="the agent never answered")
    episode.unheard(f"{prefix}-unheard")
    named = str(agent.get("name") or "agent")
    root = part(Span(id=owner, kind="agent", name=named, attributes=own), "kind", "name")
    return (root, *episode.spans(), *_embedded(row, base, rest))


def _continuation(agent: dict[str, Any], session: str) -> int:
    """Which document of its session it is: 0 = the first."""
    said = fields_of(agent.get("extra")).get("continuation_index")
    if isinstance(said, int) and 0 <= said < 100:
        return said
    found = _derived.fullmatch(session)
    return int(found.group(2)) % 100 if found and found.group(2) else 0


def _embedded(row: dict[str, Any], base: str, rest: Rest) -> list[Span]:
    spans: list[Span] = []
    found = row.get("subagent_trajectories")
    for at, one in enumerate(found if isinstance(found, list) else ()):
        if not isinstance(one, dict):
            raise BadRecord(
                f"is {name_of(one)}, not a trajectory", field=f"subagent_trajectories[{at}]"
            )
        named = one.get("session_id") or one.get("trajectory_id") or f"{base}-{at}"
        spans += _document(one, str(named), base, rest, embedded=True)
    return spans


def _root(row: dict[str, Any], agent: dict[str, Any], index: int, rest: Rest) -> dict[str, Any]:
    """What the document says of itself; a continuation's totals stand beside the first's."""
    rest.put_others(row, _DOCUMENT, "")
    rest.put_others(agent, _AGENT, "agent")
    said = {f"{key}.{index}" if index else key: value for key, value in rest.take().items()}
    said |= {key: row[key] for key in ("schema_version", "trajectory_id") if row.get(key)}
    if agent.get("version"):
        said["version"] = agent["version"]
    if fields_of(row.get("final_metrics")):
        said[f"final_metrics.{index}" if index else "final_metrics"] = row["final_metrics"]
    return said


class _Step:
    """One step on its way into the episode."""

    def __init__(self, episode: Episode, step: dict[str, Any], id: str, rest: Rest) -> None:
        self.episode, self.step, self.id, self.rest = episode, step, id, rest
        self.at = nanoseconds(step.get("timestamp"))

    def read(self) -> None:
        source = self.step.get("source")
        self.rest.put_others(self.step, _STEP, "steps")
        results = fields_of(self.step.get("observation")).get("results")
        results = (
            [one for one in results if isinstance(one, dict)] if isinstance(results, list) else []
        )
        if source == "agent":
            self.acted(results)
        elif source == "user" or (source == "system" and self.opening()):
            self.episode.hear(Message(role=str(source), parts=tuple(self.said())))
            if own := self.rest.take():
                self.noted("message", own)
        else:  # the harness speaks of itself
            self.noted(
                str(source or "step"), {**self.rest.take(), "message": self.step.get("message")}
            )
            for result in results:
                self.references(result, self.id)
            if _compacted(self.step):
                self.episode.unheard(f"{self.id}.unheard")
                self.episode.past = Past()

    def opening(self) -> bool:
        """Whether nothing but system messages came before: later ones the model does not see."""
        return all(one.role == "system" for one in self.episode.past.messages())

    def said(self) -> list[Part]:
        return read_parts(self.step.get("message"), self.rest, "steps.message")

    def noted(self, name: str, own: dict[str, Any]) -> None:
        self.episode.span("other", name, id=self.id, start=self.at, end=self.at, attributes=own)

    def acted(self, results: list[dict[str, Any]]) -> None:
        calls = self.calls()
        parts: list[Part] = []
        thought = self.step.get("reasoning_content")
        if isinstance(thought, str) and thought:
            parts.append(Reasoning(text=thought))
        message = Message(role="assistant", parts=(*parts, *self.said(), *calls))
        if self.step.get("is_copied_context") is True:
            self.episode.hear(message)
            self.heard(calls, results)
            return
        if self.step.get("llm_call_count") == 0:  # the harness acted without asking the model
            self.noted("step", {**self.rest.take(), "message": self.step.get("message")})
        else:
            self.answered(message)
        self.heard(calls, results)
        by_call = [call.id for call in calls if call.id]
        for number, call in enumerate(calls):
            result = next(
                (r for r in results if r.get("source_call_id") == call.id and call.id), None
            )
            if result is None and len(calls) == len(results) == 1:
                result = results[0] if results[0].get("source_call_id") not in by_call else None
            self.ran(call, result, number)
        for result in results:
            self.references(result, self.id)

    def answered(self, message: Message) -> None:
        metrics = fields_of(self.step.get("metrics"))
        self.rest.put_others(metrics, _METRICS, "steps.metrics")
        usage = Usage(reason="not reported")
        if metrics:
            usage = settle(
                {
                    "given": count(metrics.get("prompt_tokens")),
                    "output": count(metrics.get("completion_tokens")),
                    "cached": count(metrics.get("cached_tokens")),
                },
                answered=answered(message),
            )
        model = self.step.get("model_name")
        self.episode.answer(
            (Choice(message=message, tokens=_tokens(metrics, self.rest)),),
            id=self.id, start=self.at, end=self.at, usage=usage,
            response_model=model if isinstance(model, str) else None,
            cost_usd=cost_of(metrics.get("cost_usd")), attributes=self.rest.take(),
        )  # fmt: skip

    def heard(self, calls: list[ToolCall], results: list[dict[str, Any]]) -> None:
        """What the model sees of the outcome with its next call."""
        for result in results:
            id = result.get("source_call_id")
            content = result.get("content")
            if content is None:
                continue
            if not calls and id is None:
                said = read_parts(content, self.rest, "steps.observation.content")
                self.episode.hear(Message(role="user", parts=tuple(said)))
                continue
            id = id or (calls[0].id if len(calls) == 1 else None)
            self.episode.hear(Message(role="tool", parts=(self.result(content, id),)))

    def result(self, content: object, id: object) -> ToolResult:
        texts = content if isinstance(content, str) else arguments_text(content)
        short = self.rest.shortened("observation", texts)
        return ToolResult(content=short, id=id if isinstance(id, str) else None)

    def ran(self, call: ToolCall, result: dict[str, Any] | None, number: int) -> None:
        seen = None
        if result is not None:
            self.rest.put_others(result, _RESULT, "steps.observation")
            if result.get("content") is not None:
                seen = self.result(result["content"], call.id)
        self.episode.ran(
            call, seen, parent=self.id, id=f"{self.id}.{number}", start=self.at, end=self.at,
            attributes=self.rest.take(),
        )  # fmt: skip

    def calls(self) -> list[ToolCall]:
        found = self.step.get("tool_calls")
        calls = []
        for call in found if isinstance(found, list) else ():
            if not isinstance(call, dict):
                raise BadRecord(f"is {name_of(call)}, not a tool call", field="steps.tool_calls")
            self.rest.put_others(call, _CALL, "steps.tool_calls")
            id, name = call.get("tool_call_id"), call.get("function_name")
            text = self.rest.shortened("arguments", arguments_text(call.get("arguments")))
            calls.append(ToolCall(name=str(name or ""), arguments=text, id=str(id) if id else None))
        return calls

    def references(self, result: dict[str, Any], parent: str) -> None:
        """Sub-agents of this step: their documents tell the rest of these spans."""
        found = result.get("subagent_trajectory_ref")
        for one in found if isinstance(found, list) else [found]:
            named = fields_of(one).get("session_id") or fields_of(one).get("trajectory_id")
            if not isinstance(named, str) or not named:
                self.rest.put("steps.subagent_trajectory_ref", one)
                continue
            own = {key: value for key, value in fields_of(one).items() if value is not None}
            stub = Span(id=agent_id(named), kind="agent", parents=(parent,), attributes=own)
            self.episode.add(part(stub, "kind", "parents"))


def _tokens(metrics: dict[str, Any], rest: Rest) -> Tokens | None:
    given, gave = metrics.get("prompt_token_ids"), metrics.get("completion_token_ids")
    if given and gave:
        try:
            return msgspec.convert(
                {"prompt_ids": given, "completion_ids": gave, "logprobs": metrics.get("logprobs")},
                Tokens,
            )
        except msgspec.ValidationError:
            pass
    for key in ("prompt_token_ids", "completion_token_ids", "logprobs"):
        rest.put(f"steps.metrics.{key}", metrics.get(key))
    return None


def _compacted(step: dict[str, Any]) -> bool:
    said = fields_of(fields_of(step.get("extra")).get("context_management"))
    return said.get("type") == "compaction" and said.get("boundary") == "replace"
