"""Sessions of Anthropic's managed agents, as their client recorded them: [method, payload] rows.

The rows of a file are one session: what was created, sent and streamed. Model requests become
model spans whose input is all that was said before, tool uses tool spans between them. Invariant:
an event that is not understood is kept among the trace's attributes.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import (
    Choice,
    Message,
    Part,
    ToolCall,
    ToolResult,
    Trace,
    trace_id,
)  # fmt: skip

from .episode import Episode
from .messages import answered, read_tools
from .parsed import Context, Parsed, Rest
from .parts import read_parts, tool_call, tool_result
from .times import nanoseconds
from .usage import read_usage

SOURCE = "import:anthropic_sessions"

_CREATE = "client.beta.sessions.create"
_PREFIX = "client.beta.sessions."
_USES = ("agent.tool_use", "agent.custom_tool_use", "agent.mcp_tool_use")
_RESULTS = ("agent.tool_result", "user.custom_tool_result", "agent.mcp_tool_result")
_SILENT = ("session.status_running", "session.thread_status_running", "agent.thinking")


def recognise(sample: object) -> bool:
    if not isinstance(sample, list) or not sample:
        return False
    first = sample[0]
    return (
        isinstance(first, list)
        and len(first) == 2
        and isinstance(first[0], str)
        and first[0].startswith(_PREFIX)
    )


def read(rows: list[Any], context: Context) -> Parsed:
    rest = context.rest()
    parsed = Parsed(unmapped=rest.counts)
    session = _Session(rest)
    for at, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str)):
            parsed.rejects.append(BadRecord("is no [method, payload]", field=f"[{at}]"))
            continue
        session.take_in(row[0], row[1])
    if not session.id:
        raise BadRecord("names no session: its first row creates one, or its rows send to one")
    session.finish()
    trace = Trace(
        id=trace_id(context.project, SOURCE, session.id),
        project=context.project,
        source=SOURCE,
        external_id=session.id,
        origin="import",
        conversation=session.id,
        spans=session.episode.spans(),
        raw=context.raw,
        attributes=rest.take(),
    )
    parsed.traces.append(trace)
    return parsed


class _Session:
    """One session under way."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.id = ""
        self.episode = Episode()
        self.turn: list[Part] = []
        """What the model has said since its last request ended."""
        self.asked = self.episode.past
        """What it had seen when its request began."""
        self.began: dict[str, Any] | None = None
        self.uses: dict[str, tuple[ToolCall, dict[str, Any]]] = {}
        self.askers: dict[str, str] = {}
        """Model spans by the ids of their calls."""
        self.last: str | None = None

    def take_in(self, method: str, payload: Any) -> None:
        if method == _CREATE and isinstance(payload, dict):
            self._create(payload)
        elif isinstance(payload, list) and payload and isinstance(payload[0], str):
            self.id = self.id or payload[0]  # what was sent comes back as an event
        elif isinstance(payload, dict) and isinstance(payload.get("type"), str):
            for key in ("id", "processed_at", "session_thread_id"):
                if payload.get(key) is not None:
                    self.rest.tally(f"{method.removeprefix(_PREFIX)}.{key}")
            self._event(payload["type"], payload)
        else:
            self.rest.put(method.removeprefix(_PREFIX), payload)

    def finish(self) -> None:
        self._close(None)
        if self.last is not None:
            self.rest.attributes["stop_reason"] = self.last

    def _create(self, payload: dict[str, Any]) -> None:
        if isinstance(payload.get("id"), str):
            self.id = payload["id"]
        agent = payload.get("agent")
        agent = agent if isinstance(agent, dict) else {}
        model = agent.get("model")
        if isinstance(model, dict):
            self.rest.put_others(model, frozenset(("id",)), "agent.model")
            model = model.get("id")
        self.episode.model = model if isinstance(model, str) else None
        if isinstance(agent.get("system"), str):
            told = Message(role="system", parts=(self.rest.text(agent["system"]),))
            self.episode.hear(told)
        offered = agent.get("tools")
        if isinstance(offered, list) and all(
            isinstance(one, dict) and "input_schema" in one for one in offered
        ):
            self.episode.tools = read_tools(offered, self.rest, "agent.tools")
        else:  # a set of tools is named, their schemas are not
            self.rest.put("agent.tools", offered)
        self.rest.put_others(agent, frozenset(("model", "system", "tools")), "agent")
        self.rest.put_others(payload, frozenset(("id", "agent")), "session")

    def _event(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "span.model_request_start":
            self._close(None)
            self.began, self.asked = event, self.episode.past
        elif kind == "span.model_request_end":
            self._close(event)
        elif kind == "user.message":
            self._close(None)
            parts = read_parts(event.get("content"), self.rest, "content")
            self.episode.hear(Message(role="user", parts=tuple(parts)))
        elif kind == "agent.message":
            self.turn += read_parts(event.get("content"), self.rest, "content")
        elif kind in _USES:
            calls = tool_call(event.get("name"), event.get("input"), event.get("id"), self.rest)
            self.turn += calls
            if isinstance(calls[0], ToolCall):
                self.uses[str(event.get("id"))] = (calls[0], event)
        elif kind in _RESULTS:
            self._result(kind, event)
        elif kind.endswith("status_idle"):
            reason = event.get("stop_reason")
            self.last = reason.get("type") if isinstance(reason, dict) else self.last
        elif kind not in _SILENT:
            self._keep(kind, event)

    def _keep(self, kind: str, event: dict[str, Any]) -> None:
        held = self.rest.attributes.setdefault("events", [])
        held.append(self.rest.bounded(event))
        self.rest.tally(f"events.{kind}")

    def _close(self, end: dict[str, Any] | None) -> None:
        """Ends the model's turn under way, if one is."""
        if self.began is None and not self.turn:
            return
        message = Message(role="assistant", parts=tuple(self.turn))
        began, self.began, self.turn = self.began or {}, None, []
        calls = message.tool_calls
        choice = Choice(message=message, finish_reason="tool_calls" if calls else "stop")
        used = end.get("model_usage") if end else None
        usage = read_usage(used, answered(message), self.rest, "model_usage")
        why = "the model's request failed" if end else "the model's request never ended"
        id = began.get("id")
        asker = self.episode.answer(
            (choice,) if message.parts and end else (),
            id=id if isinstance(id, str) and id else None,
            past=self.asked,
            name="model request",
            start=nanoseconds(began.get("processed_at")),
            end=nanoseconds(end.get("processed_at")) if end else None,
            error=why if end is None or end.get("is_error") else None,
            usage=usage,
        )
        self.askers.update({call.id: asker for call in calls if call.id})
        if message.parts:
            self.episode.hear(message)

    def _result(self, kind: str, event: dict[str, Any]) -> None:
        keys = ("tool_use_id", "custom_tool_use_id", "mcp_tool_use_id")
        id = next((event[key] for key in keys if event.get(key)), None)
        call, use = self.uses.pop(str(id), (ToolCall(name="", arguments="{}"), {}))
        parts = tool_result(
            event.get("content"), id, call.name or None, self.rest, kind, event.get("is_error")
        )
        self._close(None)
        self.episode.hear(Message(role="tool", parts=tuple(parts)))
        result = parts[0] if isinstance(parts[0], ToolResult) else None
        said: dict[str, Any] = {
            key: use[key] for key in ("evaluated_permission", "mcp_server_name") if key in use
        }
        for key in said:
            self.rest.tally(key)
        name = event.get("id")
        self.episode.ran(
            call,
            result,
            parent=self.askers.get(str(id)),
            id=name if isinstance(name, str) and name else None,
            start=nanoseconds(use.get("processed_at")),
            end=nanoseconds(event.get("processed_at")),
            error=result.content if result and result.is_error else None,
            attributes=said,
        )
