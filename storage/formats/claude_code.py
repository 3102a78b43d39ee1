"""Claude Code sessions: lines of events that form a tree by parentUuid, a file each or several.

Events of one session, from whichever file, are parts of one trace: ids are the events' own. A call
sees its ancestors, back to the last compaction or /clear; blocks of one message that were written
as several events are one call. A sub-agent's chain hangs on the agent span that its prompt names,
which the main chain's file tells. Sessions of one slug are one conversation.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Choice, Message, Part, Span, ToolCall, ToolResult, Trace
from storage.span_parts import part

from .episode import Episode, Past, imported
from .finish import finish_reason
from .messages import answered, read_message, read_messages
from .nested import fields_of
from .parsed import Context, Parsed, Rest
from .parts import arguments_text
from .times import nanoseconds
from .usage import read_usage

SOURCE = "import:claude_code"

_LOOKED_AT = 32
_TASKS = ("Task", "Agent")
"""Tools that start a sub-agent."""
_EVENT = frozenset(("uuid", "parentUuid", "logicalParentUuid", "sessionId", "slug", "type",
                    "message", "timestamp", "isSidechain", "agentId", "toolUseResult", "cwd",
                    "version", "gitBranch", "userType", "requestId"))  # fmt: skip
_SESSION = ("cwd", "version", "gitBranch", "userType")
_ANSWER = frozenset(("id", "model", "type", "role", "content", "stop_reason", "stop_sequence",
                     "usage"))  # fmt: skip
_CLEARED = "<command-name>/clear</command-name>"


def recognise(sample: object) -> bool:
    rows = sample if isinstance(sample, list) else [sample]
    return any(_is_event(row) for row in rows[:_LOOKED_AT])


def read(row: dict[str, Any] | list[Any], context: Context) -> Parsed:
    parsed = Parsed()
    sessions: dict[str, list[dict[str, Any]]] = {}
    last = None
    for at, event in enumerate(row if isinstance(row, list) else [row]):
        if not isinstance(event, dict):
            parsed.rejects.append(BadRecord("is not an event", field=f"[{at}]"))
            continue
        named = event.get("sessionId")
        last = named if isinstance(named, str) and named else last
        if last is None and not isinstance(event.get("uuid"), str):
            sessions.setdefault("", []).append(event)  # a summary before anything else
        else:
            sessions.setdefault(last or "", []).append(event)
    loose = sessions.pop("", []) if len(sessions) > 1 else []
    for named, events in sessions.items():
        rest = context.rest()
        parsed.traces.append(_Session(named, [*loose, *events], rest, context).trace())
        loose = []
        for key, number in rest.counts.items():
            parsed.unmapped[key] = parsed.unmapped.get(key, 0) + number
    return parsed


class _Session:
    """The events of one session in one file, on their way into a trace."""

    def __init__(
        self, named: str, events: list[dict[str, Any]], rest: Rest, context: Context
    ) -> None:
        self.named, self.rest, self.context = named, rest, context
        self.events = events
        self.by_uuid = {one["uuid"]: one for one in events if _uuid(one)}
        self.episode = Episode()
        self.pasts: dict[str, Past] = {}
        """What a call after this event sees."""
        self.calls: dict[str, str] = {}
        """The last model call at or above an event."""
        self.firsts: dict[str, dict[str, Any]] = {}
        """The first event of an event's chain."""
        self.asked: dict[str, tuple[str, ToolCall, int | None]] = {}
        """Tool call's id -> its model call, itself, and when."""
        self.tasks: dict[str, list[str]] = {}
        """Sub-agent -> tool spans that started it."""
        self.told: dict[str, dict[str, Any]] = {}
        self.own: dict[str, Any] = {}

    def trace(self) -> Trace:
        for event in self.events:
            self.about(event)
        for group in self.groups():
            self.group(group)
        for call, (asked, made, at) in self.asked.items():
            self.ran(call, asked, made, at, None, None)
        for agent, parents in self.tasks.items():
            stub = Span(
                id=agent, kind="agent", name="sub-agent", parents=tuple(sorted(parents)),
                attributes=self.told.get(agent, {}),
            )  # fmt: skip
            self.episode.add(part(stub, "kind", "name", "parents"))
        slug = next((one["slug"] for one in self.events if isinstance(one.get("slug"), str)), None)
        named = self.named or digest(self.events)
        return imported(
            SOURCE, named, self.episode.spans(), self.context, conversation=slug or named,
            attributes=self.own,
        )  # fmt: skip

    def about(self, event: dict[str, Any]) -> None:
        for key in _SESSION:
            if event.get(key) is not None:
                self.own.setdefault(key, event[key])

    def groups(self) -> list[list[dict[str, Any]]]:
        """Events in the order of the tree, those of one answer of the model together."""
        ordered = self.ordered()
        groups: list[list[dict[str, Any]]] = []
        open_: dict[str, list[dict[str, Any]]] = {}
        for event in ordered:
            named = fields_of(event.get("message")).get("id")
            if event.get("type") == "assistant" and isinstance(named, str):
                above = event.get("parentUuid")
                held = open_.get(named)
                if held is not None and (
                    any(one.get("uuid") == above for one in held) or _same_parent(held, event)
                ):
                    held.append(event)
                    continue
                open_[named] = [event]
                groups.append(open_[named])
            else:
                groups.append([event])
        return groups

    def ordered(self) -> list[dict[str, Any]]:
        """Parents before children; a file has them so already, unless it was cut or joined."""
        done: set[str] = set()
        ordered: list[dict[str, Any]] = []
        for event in self.events:
            line, met = [event], {id(event)}
            while (above := self.by_uuid.get(str(line[-1].get("parentUuid")))) is not None:
                if above["uuid"] in done or id(above) in met:
                    break
                line.append(above)
                met.add(id(above))
            for one in reversed(line):
                if (uuid := _uuid(one)) not in done:
                    ordered.append(one)
                    if uuid:
                        done.add(uuid)
        return ordered

    def group(self, group: list[dict[str, Any]]) -> None:
        first = group[0]
        above = str(first.get("parentUuid") or "")
        past = self.pasts.get(above) or Past()
        call = self.calls.get(above, "")
        kind = first.get("type")
        if kind == "assistant":
            past, call = self.answered(group, past, call)
        elif kind == "user":
            past, call = self.heard(first, past, call)
        elif kind == "system" and first.get("subtype") == "compact_boundary":
            self.noted(first, "compaction", call)
            past = Past()
            logical = str(first.get("logicalParentUuid") or "")
            call = call or self.calls.get(logical, "")
        else:
            self.noted(first, str(first.get("subtype") or kind or "event"), call)
        for event in group:
            if uuid := _uuid(event):
                self.pasts[uuid], self.calls[uuid] = past, call
                self.firsts[uuid] = self.firsts.get(above, first)

    def answered(self, group: list[dict[str, Any]], past: Past, call: str) -> tuple[Past, str]:
        raws = [fields_of(event.get("message")) for event in group]
        parts: list[Part] = []
        for raw in raws:
            said = read_message({"role": "assistant", "content": raw.get("content")}, self.rest,
                                "message")  # fmt: skip
            parts += said.parts
            self.rest.put_others(raw, _ANSWER, "message")
        message = Message(role="assistant", parts=tuple(parts))
        last = raws[-1]
        used = next((raw["usage"] for raw in reversed(raws) if raw.get("usage")), None)
        usage = read_usage(used, answered(message), self.rest, "message.usage")
        stop = next((raw["stop_reason"] for raw in reversed(raws) if raw.get("stop_reason")), None)
        self.others(group)
        start = nanoseconds(group[0].get("timestamp"))
        end = nanoseconds(group[-1].get("timestamp"))
        failed = any(event.get("isApiErrorMessage") for event in group)
        asked = self.episode.answer(
            (Choice(message=message, finish_reason=finish_reason(stop)),),
            id=str(raws[0].get("id") or group[0].get("uuid")), past=past,
            parents=(call,) if call else self.root(group[0]), start=start, end=end, usage=usage,
            error=message.text if failed else None, attributes=self.rest.take(),
            version=64 * past.count + min(len(group), 63),  # told with more before it, it stands
            response_model=last["model"] if isinstance(last.get("model"), str) else None,
        )  # fmt: skip
        for made in message.tool_calls:
            if made.id:
                self.asked[made.id] = (asked, made, end)
        return past.plus(message), asked

    def root(self, event: dict[str, Any]) -> tuple[str, ...]:
        """What a chain's first call hangs on: a sub-agent's, on what its prompt names."""
        above = str(event.get("parentUuid") or "")
        if above and above not in self.by_uuid:
            return (f"event-{above}",)  # in another file, or lost
        if event.get("isSidechain") is not True:
            return ()
        first = self.firsts.get(above, event)
        return (_agent(fields_of(first.get("message")).get("content")),)

    def heard(self, event: dict[str, Any], past: Past, call: str) -> tuple[Past, str]:
        raw = fields_of(event.get("message"))
        content = raw.get("content")
        text = content if isinstance(content, str) else ""
        if _CLEARED in text:
            self.noted(event, "clear", call)
            return Past(), ""
        said = read_messages([{"role": "user", "content": content}], self.rest, "message")
        for result in (one for message in said for one in message.parts):
            if not isinstance(result, ToolResult):
                continue
            if (found := self.asked.pop(result.id or "", None)) is not None:
                self.ran(result.id or "", *found, result, event)
        if own := self.left(event):
            self.noted_as(event, "message", call, own)
        return past.plus(*said), call

    def ran(
        self, id: str, asked: str, made: ToolCall, start: int | None,
        result: ToolResult | None, event: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        told = event.get("toolUseResult") if event is not None else None
        own = {} if told is None else {"toolUseResult": self.rest.bounded(told)}
        end = nanoseconds(event.get("timestamp")) if event is not None else None
        span = self.episode.ran(
            made, result, parent=asked, id=id, start=start, end=end, attributes=own,
            version=0 if result is None else 1,
            error="the tool failed" if result is not None and result.is_error else None,
        )  # fmt: skip
        given = _arguments(made)
        if made.name in _TASKS and isinstance(given.get("prompt"), str):
            agent = _agent(given["prompt"])
            self.tasks.setdefault(agent, []).append(span)
            about = fields_of(told)
            kept = {"subagent_type": given.get("subagent_type"), "agentId": about.get("agentId")}
            self.told.setdefault(agent, {}).update({k: v for k, v in kept.items() if v})

    def others(self, group: list[dict[str, Any]]) -> None:
        for event in group:
            self.rest.put_others(event, _EVENT, "event")
            self.placed(event)

    def placed(self, event: dict[str, Any]) -> None:
        """Its place in the tree is now the order of messages; the row alone has its own ids."""
        for key in ("uuid", "parentUuid", "timestamp"):
            if event.get(key) is not None:
                self.rest.tally(f"event.{key}")

    def left(self, event: dict[str, Any]) -> dict[str, Any]:
        """What of an event no message holds."""
        self.rest.put_others(event, _EVENT, "event")
        self.placed(event)
        if event.get("toolUseResult") is not None:
            self.rest.tally("event.toolUseResult")
        return self.rest.take()

    def noted(self, event: dict[str, Any], name: str, call: str) -> None:
        self.rest.tally(f"event.{name}")
        self.noted_as(event, name, call, {"event": self.rest.bounded(event)})

    def noted_as(self, event: dict[str, Any], name: str, call: str, own: dict[str, Any]) -> None:
        at = nanoseconds(event.get("timestamp"))
        self.episode.span(
            "other", name, id=f"event-{_uuid(event) or digest(event)[:16]}",
            parents=(call,) if call else (), start=at, end=at, attributes=own,
        )  # fmt: skip


def _agent(prompt: object) -> str:
    """The id of the agent span of a prompt, as both sides know it."""
    text = prompt if isinstance(prompt, str) else arguments_text(prompt)
    return f"agent-{digest(text.strip())[:16]}"


def _arguments(call: ToolCall) -> dict[str, Any]:
    return fields_of(call.arguments)


def _uuid(event: dict[str, Any]) -> str:
    uuid = event.get("uuid")
    return uuid if isinstance(uuid, str) else ""


def _same_parent(held: list[dict[str, Any]], event: dict[str, Any]) -> bool:
    return held[0].get("parentUuid") == event.get("parentUuid") is not None


def _is_event(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("sessionId"), str):
        return False
    return isinstance(row.get("uuid"), str) and "parentUuid" in row and "type" in row
