"""opencode's stream of events, [hook, given, made] a line: sessions, messages and their parts.

Events tell a message again and again as it grows; the last of each stands. A step of an assistant's
message is a model call. A session that a tool started is an agent under that tool's span, in the
trace of the session that started it.
"""

from typing import Any

from flywheel.records import (
    Choice,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
)

from .completed import cost_of
from .episode import Episode, Past, imported
from .finish import finish_reason
from .messages import answered
from .nested import fields_of
from .opencode_tools import tool_of
from .parsed import Context, Parsed, Rest
from .parts import arguments_text, attachment, picture
from .times import nanoseconds
from .usage import count, settle

SOURCE = "import:opencode"

_HOOKS = ("event", "chat.message", "tool.definition", "experimental.chat.system.transform",
          "chat.params", "tool.execute.before", "tool.execute.after")  # fmt: skip
_INFO = frozenset(("id", "parentID", "role", "sessionID", "time", "cost", "tokens", "modelID",
                   "providerID", "finish", "error", "agent", "mode", "path", "model", "system",
                   "summary", "tools"))  # fmt: skip
_PART = frozenset(("id", "messageID", "sessionID", "type", "text", "time", "tool", "callID",
                   "state", "metadata", "snapshot", "reason", "tokens", "cost", "synthetic",
                   "mime", "url", "filename"))  # fmt: skip
_STATE = frozenset(("status", "input", "output", "time", "title", "metadata", "error", "raw",
                    "attachments"))  # fmt: skip
_LOOKED_AT = 16


def recognise(sample: object) -> bool:
    if not isinstance(sample, list) or not sample:
        return False
    rows = sample[:_LOOKED_AT] if isinstance(sample[0], list) else [sample]
    return all(
        isinstance(row, list) and len(row) > 1 and row[0] in _HOOKS and isinstance(row[1], dict)
        for row in rows
    )


def read(row: list[Any], context: Context) -> Parsed:
    rest = context.rest()
    told = _Told(rest)
    for at, event in enumerate(row if row and isinstance(row[0], list) else [row]):
        if isinstance(event, list) and len(event) > 1:
            told.take(at, str(event[0]), event[1:])
        else:
            rest.put("event", event)
    return Parsed(told.traces(context), [], rest.counts)


class _Told:
    """What the events come to, the last word of each thing."""

    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self.sessions: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, dict[str, dict[str, Any]]] = {}
        """By message, in the order in which they came."""
        self.systems: dict[tuple[str, str], list[tuple[int, list[str]]]] = {}
        """By session and model: when, and the system prompts."""
        self.begun: dict[str, int] = {}
        self.tools: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, str] = {}
        """Session -> the tool span that started it."""

    def take(self, at: int, hook: str, told: list[Any]) -> None:
        given = fields_of(told[0])
        made = fields_of(told[1]) if len(told) > 1 else {}
        if hook == "event":
            event = fields_of(given.get("event"))
            self.rest.tally("properties.time")
            self.event(at, str(event.get("type")), fields_of(event.get("properties")), event)
        elif hook == "chat.message":
            for place in ("messageID", "message.id", "message.time"):
                self.rest.tally(f"{hook}.{place}")
            self.message(at, fields_of(made.get("message")))
            parts = made.get("parts")
            for one in parts if isinstance(parts, list) else ():
                self.part(fields_of(one))
        elif hook == "tool.definition":
            self.tools[str(given.get("toolID"))] = made
        elif hook == "experimental.chat.system.transform":
            key = (str(given.get("sessionID")), str(fields_of(given.get("model")).get("id")))
            system = made.get("system")
            texts = (
                [one for one in system if isinstance(one, str)] if isinstance(system, list) else []
            )
            self.systems.setdefault(key, []).append((at, texts))
            self.rest.tally(hook)
        else:
            self.rest.put(hook, told)

    def event(self, at: int, kind: str, told: dict[str, Any], event: dict[str, Any]) -> None:
        if kind in ("session.created", "session.updated"):
            info = fields_of(told.get("info"))
            self.sessions.setdefault(str(info.get("id")), {}).update(info)
        elif kind == "message.updated":
            self.message(at, fields_of(told.get("info")))
        elif kind == "message.part.updated":
            self.part(fields_of(told.get("part")))
        elif kind in ("message.part.removed", "message.removed"):
            self.parts.get(str(told.get("messageID")), {}).pop(str(told.get("partID")), None)
            self.rest.tally(f"event.{kind}")
        else:
            self.rest.tally(f"event.{kind}")

    def message(self, at: int, info: dict[str, Any]) -> None:
        id = info.get("id")
        for key in ("id", "parentID", "time"):
            if info.get(key) is not None:
                self.rest.tally(f"info.{key}")
        if isinstance(id, str):
            self.messages.setdefault(id, {}).update(info)
            self.begun.setdefault(id, at)

    def part(self, part: dict[str, Any]) -> None:
        id, message = part.get("id"), part.get("messageID")
        if isinstance(id, str) and isinstance(message, str):
            self.parts.setdefault(message, {})[id] = part

    def traces(self, context: Context) -> list[Trace]:
        by_session: dict[str, list[dict[str, Any]]] = {}
        for info in self.messages.values():
            by_session.setdefault(str(info.get("sessionID")), []).append(info)
        for parts in self.parts.values():
            for part in parts.values():
                started = fields_of(fields_of(part.get("state")).get("metadata")).get("sessionId")
                if isinstance(started, str):
                    self.agents[started] = str(part["id"])
        episodes: dict[str, Episode] = {}
        for session in dict.fromkeys([*self.sessions, *by_session]):
            episode = episodes.setdefault(self.root(session), Episode())
            episode.tools = tuple(tool_of(*one) for one in self.tools.items()) or None
            _Session(self, session, episode).read(by_session.get(session, []))
        return [
            imported(
                SOURCE, root, episode.spans(), context, conversation=root,
            )
            for root, episode in episodes.items()
        ]  # fmt: skip

    def root(self, session: str) -> str:
        """The session that it all began with."""
        seen = {session}
        while isinstance(above := self.sessions.get(session, {}).get("parentID"), str):
            if above in seen:
                break
            seen.add(above)
            session = above
        return session

    def system(self, info: dict[str, Any]) -> list[str]:
        """The system prompts of one call: the first said after it began, else the last before."""
        key = (str(info.get("sessionID")), str(info.get("modelID")))
        begun, found = self.begun.get(str(info.get("id")), 0), self.systems.get(key, [])
        after = next((texts for at, texts in found if at >= begun), None)
        return after if after is not None else (found[-1][1] if found else [])


class _Session:
    """The messages of one session on their way into its trace."""

    def __init__(self, told: _Told, session: str, episode: Episode) -> None:
        self.told, self.session, self.episode, self.rest = told, session, episode, told.rest
        self.past = Past()
        self.head: Message | None = None
        """The system prompt that `past` begins with."""

    def read(self, messages: list[dict[str, Any]]) -> None:
        info = self.told.sessions.get(self.session, {})
        above = self.told.agents.get(self.session)
        if above is None and isinstance(info.get("parentID"), str):
            above = str(info["parentID"])
        own = {key: info[key] for key in info if key not in ("id", "time", "parentID", "summary")}
        times = fields_of(info.get("time"))
        self.episode.span(
            "agent", str(info.get("title") or "opencode"), id=self.session,
            parents=(above,) if above else (), start=nanoseconds(times.get("created")),
            end=nanoseconds(times.get("updated")), attributes=own,
            version=count(times.get("updated")) or 0,
        )  # fmt: skip
        self.episode.parents = (self.session,)
        order = sorted(messages, key=lambda one: _created(one) or 0)
        for message in order:
            parts = list(self.told.parts.get(str(message.get("id")), {}).values())
            if message.get("role") == "assistant":
                self.answered(message, parts)
            else:
                self.heard(message, parts)

    def heard(self, message: dict[str, Any], parts: list[dict[str, Any]]) -> None:
        self.rest.put_others(message, _INFO, "message")
        self.rest.put("message.summary", fields_of(message.get("summary")))
        said = [one for part in parts for one in self.said(part)]
        self.past = self.past.plus(Message(role="user", parts=tuple(said)))
        if own := self.rest.take():
            at = _created(message)
            self.episode.span(
                "other", "message", id=str(message.get("id")), start=at, end=at, attributes=own
            )

    def answered(self, message: dict[str, Any], parts: list[dict[str, Any]]) -> None:
        steps: list[list[dict[str, Any]]] = [[]]
        for part in parts:
            if part.get("type") == "step-start" and steps[-1]:
                steps.append([])
            steps[-1].append(part)
        for number, step in enumerate(steps):
            self.step(message, step, number, number == len(steps) - 1)
        if message.get("summary") is True:  # what was before it is not seen any more
            self.past, self.head = Past(self.past.messages()[-1:]), None

    def step(
        self, message: dict[str, Any], parts: list[dict[str, Any]], number: int, last: bool
    ) -> None:
        said: list[Part] = []
        results: list[tuple[ToolCall, dict[str, Any]]] = []
        ended: dict[str, Any] = {}
        for part in parts:
            if part.get("type") == "tool":
                self.placed(part)
                call = self.call(part)
                said.append(call)
                results.append((call, part))
            elif part.get("type") == "step-finish":
                self.placed(part)
                ended = part
            else:
                said += self.said(part)
        self.rest.put_others(message, _INFO, "message")
        id = str(message.get("id")) + (f".{number}" if number else "")
        asked = self.call_of(message, Message(role="assistant", parts=tuple(said)), ended, id, last)
        for call, part in results:
            self.ran(call, part, asked)

    def call_of(
        self, message: dict[str, Any], said: Message, ended: dict[str, Any], id: str, last: bool
    ) -> str:
        tokens = fields_of(ended.get("tokens")) or (
            fields_of(message.get("tokens")) if last else {}
        )
        cache = fields_of(tokens.get("cache"))
        usage = settle(
            {
                "given": count(tokens.get("input")), "output": count(tokens.get("output")),
                "cached": count(cache.get("read")), "created": count(cache.get("write")),
                "reasoning": count(tokens.get("reasoning")), "total": count(tokens.get("total")),
            },
            answered=answered(said), additive=True,
        )  # fmt: skip
        if not said.parts and not count(tokens.get("output")):
            usage = Usage(reason="the answer has not come")
        failed = fields_of(message.get("error"))
        finish = ended.get("reason") or (message.get("finish") if last else None)
        model = message.get("modelID")
        self.begin_with([Text(text=text) for text in self.told.system(message)])
        past = self.past
        done = count(fields_of(message.get("time")).get("completed"))
        own = self.rest.take()
        for key in ("agent", "mode", "providerID"):
            if message.get(key):
                own[key] = message[key]
        asked = self.episode.answer(
            (Choice(message=said, finish_reason=finish_reason(finish)),) if said.parts else (),
            id=id, past=past, start=_created(message), end=nanoseconds(done), usage=usage,
            error=str(failed.get("name") or failed) if failed else None, version=done or 0,
            cost_usd=cost_of(ended.get("cost", message.get("cost"))) if said.parts else None,
            attributes=own,
            model=model if isinstance(model, str) else None,
        )  # fmt: skip
        self.past = self.past.plus(said)
        return asked

    def begin_with(self, system: list[Text]) -> None:
        """The system prompt in front, where it is another one than before."""
        head = Message(role="system", parts=tuple(system)) if system else self.head
        if head != self.head and head is not None:
            said = self.past.messages()[1 if self.head else 0 :]
            self.past, self.head = Past((head, *said)), head

    def call(self, part: dict[str, Any]) -> ToolCall:
        given = fields_of(part.get("state")).get("input")
        return ToolCall(
            name=str(part.get("tool") or ""),
            arguments=self.rest.shortened("arguments", arguments_text(given)),
            id=str(part["callID"]) if part.get("callID") else None,
        )

    def ran(self, call: ToolCall, part: dict[str, Any], asked: str) -> None:
        state = fields_of(part.get("state"))
        self.rest.put_others(state, _STATE, "part.state")
        status, failed = state.get("status"), state.get("error")
        result = None
        if status in ("completed", "error"):
            shown = failed if status == "error" else state.get("output")
            result = ToolResult(
                content=self.rest.shortened("result", arguments_text(shown or "")), id=call.id,
                name=call.name, is_error=True if status == "error" else None,
            )  # fmt: skip
            self.past = self.past.plus(Message(role="tool", parts=(result,)))
        own = self.rest.take()
        for key in ("title", "metadata"):
            if state.get(key):
                own[key] = self.rest.bounded(state[key])
        times = fields_of(state.get("time"))
        self.episode.ran(
            call, result, parent=asked, id=str(part["id"]), start=nanoseconds(times.get("start")),
            end=nanoseconds(times.get("end")), attributes=own, version=0 if result is None else 1,
            error=str(failed) if status == "error" else None,
        )  # fmt: skip

    def said(self, part: dict[str, Any]) -> list[Part]:
        """A part as the model said or saw it; what only the program needs is counted."""
        kind, text = part.get("type"), part.get("text")
        self.rest.put_others(part, _PART, "part")
        self.placed(part)
        if kind == "text" and isinstance(text, str):
            return [self.rest.text(text)]
        if kind == "reasoning" and isinstance(text, str):
            signed = fields_of(fields_of(part.get("metadata")).get("anthropic")).get("signature")
            return [Reasoning(text=text, signature=signed if isinstance(signed, str) else None)]
        if kind == "file":
            mime = str(part.get("mime") or "")
            if mime.startswith("image/"):
                return [picture(part.get("url"), self.rest, mime)]
            return [attachment(part.get("url"), part.get("filename"), mime, self.rest)]
        if kind not in ("step-start", "step-finish"):
            self.rest.put(f"part.{kind}", {key: one for key, one in part.items() if key != "id"})
        return []

    def placed(self, part: dict[str, Any]) -> None:
        """Ids, times and snapshots of parts: a message of ours has no place for them."""
        for key in ("id", "messageID", "time", "snapshot"):
            if part.get(key) is not None:
                self.rest.tally(f"part.{key}")
                self.rest.tally(f"parts.{key}")


def _created(message: dict[str, Any]) -> int | None:
    return nanoseconds(fields_of(message.get("time")).get("created"))
