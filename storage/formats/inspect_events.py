"""The events of one Inspect sample as spans: model calls, tools as they ran, agents around them.

What enters are a sample's events; what leaves is an episode, and the calls of its scorers apart, as
a judge's answer is not the sample's. Events of the machinery (states, stores, steps) are counted;
what happened outside the model (sandbox, input, errors) stands as spans.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Choice, Message, ToolCall, ToolResult

from .episode import Episode, Past
from .finish import finish_reason
from .inspect_values import Attachments, read_config, read_counts, read_said
from .messages import answered, read_tools
from .nested import fields_of
from .parsed import Rest
from .parts import arguments_text
from .times import nanoseconds

_QUIET = frozenset(("state", "store", "sample_init", "score", "step", "score_edit"))
_MODEL = frozenset(("event", "uuid", "span_id", "timestamp", "working_start", "model", "input",
                    "input_refs", "tools", "tool_choice", "config", "output", "completed",
                    "working_time", "error", "cache", "pending", "call", "call_refs"))  # fmt: skip
_TOOL = frozenset(("event", "uuid", "span_id", "timestamp", "working_start", "id", "function",
                   "arguments", "result", "error", "completed", "working_time", "events", "type",
                   "pending", "view"))  # fmt: skip
_SPAN = frozenset(("event", "uuid", "span_id", "timestamp", "working_start", "id", "parent_id",
                   "type", "name"))  # fmt: skip
_OUTPUT = frozenset(("model", "choices", "usage", "completion", "time", "error"))
_CHOICE = frozenset(("message", "stop_reason"))
_PLACED = frozenset(("event", "uuid", "span_id", "timestamp", "working_start", "completed",
                     "working_time"))  # fmt: skip
_UNHELD = ("uuid", "span_id", "working_start", "view", "input_refs")
"""What places an event in the log and on its screen: the spans' own places say it."""
_UNKNOWN = ("unknown", "")
MOST_REFERRED = 1_000_000
"""Messages of the pool that the events of one sample may name, repeated ones too."""


class Events:
    """One sample's events on their way into episodes."""

    def __init__(
        self,
        episode: Episode,
        scored: Episode,
        attachments: Attachments,
        pool: list[Any],
        rest: Rest,
    ) -> None:
        self.episode, self.scored, self.attachments = episode, scored, attachments
        self.pool, self.rest = pool, rest
        self.root = episode.parents
        self.spans: dict[str, str] = {}
        """Type of each span that began, by its id."""
        self.above: dict[str, str | None] = {}
        self.asked: dict[str, str] = {}
        """Tool call's id -> the model call that asked for it."""
        self.ended: dict[str, int | None] = {}
        self.step: list[str] = []
        self.read: dict[int, tuple[Message, ...]] = {}
        """Messages of the pool, as they were needed."""
        self.referred = 0
        self.before: tuple[list[Message], Past] | None = None

    def all(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, dict) and event.get("event") == "span_end":
                self.ended[str(event.get("id"))] = nanoseconds(event.get("timestamp"))
        for event in events:
            if isinstance(event, dict):
                self.event(event, None)
            else:
                self.rest.put("events", event)

    def event(self, event: dict[str, Any], within: str | None) -> None:
        kind = str(event.get("event"))
        for key in _UNHELD:
            if event.get(key) is not None:
                self.rest.tally(f"events.{kind}.{key}")
        if kind == "model":
            self.model(event, within)
        elif kind == "tool":
            self.tool(event, within)
        elif kind == "span_begin":
            self.began(event)
        elif kind == "step":  # older logs: scorers stand between a begin and an end
            self.stepped(event)
        elif kind == "span_end" or kind in _QUIET:
            self.rest.tally(f"events.{kind}")
        else:
            self.noted(event, kind, within)

    def parents(self, event: dict[str, Any], within: str | None) -> tuple[str, ...]:
        if within is not None:
            return (within,)
        id = event.get("span_id")
        return (id,) if isinstance(id, str) and id in self.spans else self.root

    def began(self, event: dict[str, Any]) -> None:
        id = event.get("id")
        if not isinstance(id, str) or not id or id in self.spans:
            self.rest.put("events.span_begin", event)
            return
        kind, name = str(event.get("type") or ""), str(event.get("name") or "")
        above = event.get("parent_id")
        self.above[id] = above if isinstance(above, str) else None
        self.spans[id] = kind
        if self.scores(event) or kind == "scorer":
            self.rest.tally("events.span_begin")
            return
        self.rest.put_others(event, _SPAN, "events.span_begin")
        parents = (above,) if isinstance(above, str) and above in self.spans else self.root
        self.episode.span(
            "agent" if kind in ("agent", "handoff") else "other", name or kind, id=id,
            parents=parents, start=nanoseconds(event.get("timestamp")), end=self.ended.get(id),
            attributes={"type": kind, **self.rest.take()},
        )  # fmt: skip

    def stepped(self, event: dict[str, Any]) -> None:
        if event.get("action") == "begin":
            self.step.append(str(event.get("type") or ""))
        elif self.step:
            self.step.pop()
        self.rest.tally("events.step")

    def scores(self, event: dict[str, Any]) -> bool:
        """Whether an event is a scorer's."""
        if any(kind == "scorer" for kind in self.step):
            return True
        id = event.get("span_id") if event.get("event") != "span_begin" else event.get("parent_id")
        for _ in range(len(self.spans) + 1):
            if not isinstance(id, str) or id not in self.spans:
                return False
            if self.spans[id] in ("scorer", "scorers"):
                return True
            id = self.above.get(id)
        return False

    def model(self, event: dict[str, Any], within: str | None) -> None:
        rest = self.rest
        scored = self.scores(event)
        given = event.get("input") or []
        said = list(read_said(given, self.attachments, rest, "events.model.input"))
        for first, end in self.ranges(event.get("input_refs")):
            said += self.pooled(first, end)
        output = fields_of(event.get("output"))
        choices = self.choices(output)
        rest.put_others(event, _MODEL, "events.model")
        rest.put_others(output, _OUTPUT, "events.model.output")
        rest.put("output.time", output.get("time"))
        if event.get("call") is not None:
            rest.tally("events.model.call")
        error = event.get("error") or output.get("error")
        tools = self.attachments.restored(event.get("tools"))
        model, answerer = event.get("model"), output.get("model")
        cached = True if event.get("cache") == "read" else None
        episode = self.scored if scored else self.episode
        id = episode.answer(
            choices,
            id=_id(event),
            past=self.after(said),
            parents=() if scored else self.parents(event, within),
            start=nanoseconds(event.get("timestamp")),
            end=nanoseconds(event.get("completed")),
            error=str(error) if error else None,
            usage=read_counts(
                output.get("usage"), any(answered(choice.message) for choice in choices)
            ),
            tools=None if tools is None else read_tools(tools, rest, "events.tools"),
            model=model if isinstance(model, str) else None,
            response_model=answerer if isinstance(answerer, str) and answerer else None,
            sampling=read_config(event.get("config"), event.get("tool_choice")),
            cached=cached,
            cost_usd=0.0 if cached else None,
            attributes=self.taken(event),
        )
        for choice in choices:
            self.asked.update({call.id: id for call in choice.message.tool_calls if call.id})

    def choices(self, output: dict[str, Any]) -> list[Choice]:
        found = output.get("choices")
        choices = []
        for one in found if isinstance(found, list) else ():
            one = fields_of(one)
            message = one.get("message")
            if not isinstance(message, dict):
                self.rest.put("events.model.output.choices", one)
                continue
            self.rest.put_others(one, _CHOICE, "events.model.output.choices")
            whole = [{"role": "assistant", **message}]
            path = "events.model.output.choices.message"
            (said,) = read_said(whole, self.attachments, self.rest, path)
            stop = one.get("stop_reason")
            if stop in _UNKNOWN and stop:
                self.rest.tally("events.model.output.choices.stop_reason")
            choices.append(
                Choice(
                    message=said, finish_reason=None if stop in _UNKNOWN else finish_reason(stop)
                )
            )
        return choices

    def pooled(self, first: int, end: int) -> list[Message]:
        """Messages of the pool, each read once."""
        self.referred += max(0, min(end, len(self.pool)) - first)
        if self.referred > MOST_REFERRED:
            raise BadRecord(f"refers to over {MOST_REFERRED:,} messages", field="events")
        said: list[Message] = []
        for at in range(first, min(end, len(self.pool))):
            if at not in self.read:
                one = self.pool[at : at + 1]
                self.read[at] = read_said(one, self.attachments, self.rest, "message_pool")
            said += self.read[at]
        return said

    def after(self, said: list[Message]) -> Past:
        """The past of a call, grown from that of the call before where it goes on with it."""
        before = self.before
        if before and len(said) >= len(before[0]) and said[: len(before[0])] == before[0]:
            past = before[1].plus(*said[len(before[0]) :])
        else:
            past = Past(said)
        self.before = (said, past)
        return past

    def ranges(self, refs: object) -> list[tuple[int, int]]:
        """Places in the pool of messages, each from its first to before its end."""
        found = []
        for one in refs if isinstance(refs, list) else ():
            if isinstance(one, list) and len(one) == 2 and all(type(at) is int for at in one):
                found.append((max(0, one[0]), max(0, one[1])))
            elif type(one) is int and one >= 0:
                found.append((one, one + 1))
        return found

    def tool(self, event: dict[str, Any], within: str | None) -> None:
        rest = self.rest
        id = _text(event.get("id"))
        rest.put_others(event, _TOOL, "events.tool")
        text = arguments_text(self.attachments.restored(event.get("arguments")))
        call = ToolCall(
            name=str(event.get("function") or ""),
            arguments=rest.shortened("arguments", text),
            id=id,
        )
        failed = fields_of(event.get("error"))
        seen = self.attachments.restored(event.get("result"))
        result = None
        if seen is not None or failed:
            told = seen if seen not in (None, "") else failed.get("message", "")
            result = ToolResult(
                content=rest.shortened("result", _shown(told)), id=id, name=call.name,
                is_error=True if failed else None,
            )  # fmt: skip
        parent = self.asked.get(id or "") or (self.parents(event, within) or ("",))[0]
        ran = self.episode.ran(
            call, result, parent=parent or None, id=_id(event),
            start=nanoseconds(event.get("timestamp")), end=nanoseconds(event.get("completed")),
            error=f"{failed.get('type')}: {failed.get('message')}" if failed else None,
            attributes=self.taken(event),
        )  # fmt: skip
        inner = event.get("events")
        for one in inner if isinstance(inner, list) else ():
            if isinstance(one, dict):
                self.event(one, ran)

    def noted(self, event: dict[str, Any], kind: str, within: str | None) -> None:
        own = {
            key: self.rest.bounded(value)
            for key, value in self.attachments.restored(event).items()
            if key not in _PLACED and value not in (None, [], {})
        }
        error = fields_of(event.get("error")).get("message") if kind == "error" else None
        at = nanoseconds(event.get("timestamp"))
        self.episode.span(
            "other", kind, id=_id(event), parents=self.parents(event, within), start=at,
            end=nanoseconds(event.get("completed")) or at, attributes=own,
            error=str(error) if error else None,
        )  # fmt: skip

    def taken(self, event: dict[str, Any]) -> dict[str, Any]:
        own = self.rest.take()
        if isinstance(event.get("working_time"), int | float):
            own["working_time"] = event["working_time"]
        return own


def unseen(messages: tuple[Message, ...], episode: Episode, scored: Episode) -> list[Message]:
    """Messages of the sample that no call saw or said."""
    known = episode.seen() | scored.seen()
    return [message for message in messages if digest(message) not in known]


def _id(event: dict[str, Any]) -> str | None:
    return _text(event.get("uuid")) or None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _shown(value: object) -> str:
    """A result as text; parts that are not text as their JSON."""
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        texts = [one["text"] for one in value if isinstance(one.get("text"), str)]
        if len(texts) == len(value):
            return "".join(texts)
    return arguments_text("" if value is None else value)
