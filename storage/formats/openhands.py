"""OpenHands event lists, a file each or the `history` of a resolver's output row.

An action and what was observed of it (`cause`) are one tool run; the actions that one response of
the model asked for are one call. Events of state stay as spans of their own. Where events carry no
response of the model, its answer is the thought and the action itself.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Choice, Feedback, Message, Part, ToolCall, ToolResult, say

from .completed import completed, cost_of
from .episode import Episode, imported
from .messages import name_of, read_message
from .nested import fields_of
from .parsed import Context, Parsed, Rest
from .parts import arguments_text
from .times import nanoseconds

SOURCE = "import:openhands"

_EVENT = frozenset(("id", "timestamp", "source", "message", "action", "observation", "args",
                    "extras", "content", "cause", "tool_call_metadata", "thought", "command",
                    "code"))  # fmt: skip
_QUIET = ("", "change_agent_state", "agent_state_changed", "null", "system", "recall")
"""Events of the machinery: the model never sees them."""
_OUTPUT = frozenset(("history", "metrics", "success", "error", "instruction", "result_explanation",
                     "comment_success"))  # fmt: skip


def recognise(sample: object) -> bool:
    if isinstance(sample, dict):
        history = sample.get("history")
        named = {"git_patch", "instruction", "test_result", "metrics"} & sample.keys()
        return bool(named) and isinstance(history, list) and _are_events(history)
    return isinstance(sample, list) and _are_events(sample) and "id" in sample[0]


def read(row: dict[str, Any] | list[Any], context: Context) -> Parsed:
    output = row if isinstance(row, dict) else {"history": row}
    rest = context.rest()
    events = output.get("history")
    if not isinstance(events, list):
        raise BadRecord(f"is {name_of(events)}, not a list of events", field="history")
    for at, event in enumerate(events):
        if not isinstance(event, dict):
            raise BadRecord(f"is {name_of(event)}, not an event", field=f"history[{at}]")
    episode = Episode()
    _root(episode, output, rest)
    _Reading(episode, events, fields_of(output.get("metrics")), rest).all()
    external = digest(output.get("instance_id"), output.get("instruction"), events)
    trace = imported(SOURCE, external, episode.spans(), context)
    said = [
        Feedback(
            project=trace.project, target=trace.id, name=key, value=output[key], kind="boolean",
            by="openhands",
        )
        for key in ("success", "comment_success")
        if isinstance(output.get(key), bool)
    ]  # fmt: skip
    return Parsed([trace], said, rest.counts)


def _root(episode: Episode, output: dict[str, Any], rest: Rest) -> None:
    rest.put_others(output, _OUTPUT, "")
    metrics = fields_of(output.get("metrics"))
    rest.put_others(metrics, frozenset(("accumulated_cost", "costs")), "metrics")
    own = rest.take()
    if cost_of(metrics.get("accumulated_cost")) is not None:
        own["accumulated_cost"] = metrics["accumulated_cost"]
    for key in ("success", "comment_success", "result_explanation", "instruction"):
        if output.get(key) is not None:
            own[key] = output[key]
    error = output.get("error")
    root = episode.span(
        "agent", "openhands", id="agent", attributes=own, error=str(error) if error else None
    )
    episode.parents = (root,)


class _Reading:
    """One list of events on its way into an episode."""

    def __init__(
        self, episode: Episode, events: list[Any], metrics: dict[str, Any], rest: Rest
    ) -> None:
        self.episode, self.events, self.rest = episode, events, rest
        costs = metrics.get("costs")
        self.costs = costs if isinstance(costs, list) else []
        self.answers = 0
        self.by_response: dict[str, str] = {}
        """Response id -> id of its model call."""
        self.observed: dict[Any, Any] = {}
        """Index of an action -> its observation."""
        self.taken: set[int] = set()

    def all(self) -> None:
        by_id = {str(event["id"]): at for at, event in enumerate(self.events) if "id" in event}
        for at, event in enumerate(self.events):
            if "observation" not in event:
                continue
            cause = event.get("cause")
            if cause is None and at and "id" not in event and "action" in self.events[at - 1]:
                self.observed[at - 1] = at  # older lists: what follows an action is its outcome
            elif (found := by_id.get(str(cause))) is not None and "action" in self.events[found]:
                self.observed[found] = at
        self.taken = set(self.observed.values())
        for at, event in enumerate(self.events):
            if at not in self.taken:
                self.event(at, event)
        if not self.answers and not self.episode.last:
            self.episode.answer((), error="the agent never answered")

    def event(self, at: int, event: dict[str, Any]) -> None:
        kind = str(event.get("action") or event.get("observation") or "")
        if kind in _QUIET or event.get("source") == "environment":
            self.noted(event, kind)
            if kind == "system" and (said := self.content(event)):
                self.episode.hear(say("system", said))
        elif "action" not in event:  # an observation without its action: it was seen all the same
            self.episode.hear(say("user", self.content(event)))
            self.noted(event, kind)
        elif event.get("source") == "user" or (kind == "message" and not self.episode.last
                                               and "source" not in event):  # fmt: skip
            self.episode.hear(say("user", self.content(event)))
            self.others(event)
            self.noted_others(event)
        else:
            self.acted(at, event, kind)

    def acted(self, at: int, event: dict[str, Any], kind: str) -> None:
        called = fields_of(event.get("tool_call_metadata"))
        response = fields_of(called.get("model_response"))
        asked = self.by_response.get(str(response.get("id"))) if response.get("id") else None
        if asked is None:
            asked = self.answered(event, kind, response)
        seen = self.events[self.observed[at]] if at in self.observed else None
        call = _call(event, kind, called)
        if call is None:
            if seen is not None:
                self.episode.hear(say("user", self.content(seen)))
                self.noted(seen, str(seen.get("observation")))
            return
        result = None
        if seen is not None:
            result = ToolResult(
                content=self.content(seen), id=call.id, name=call.name if call.id else None
            )
            heard = (result,) if call.id else None
            said = Message(role="tool", parts=heard) if heard else say("user", result.content)
            self.episode.hear(said)
        for one in (event, *((seen,) if seen is not None else ())):
            self.others(one)
        if call.name != kind:
            self.rest.put("action", kind)
        self.episode.ran(
            call, result, parent=asked, start=nanoseconds(event.get("timestamp")),
            end=nanoseconds(seen.get("timestamp")) if seen is not None else None,
            attributes=self.rest.take(),
        )  # fmt: skip

    def answered(self, event: dict[str, Any], kind: str, response: dict[str, Any]) -> str:
        """The model call behind an action."""
        choices = response.get("choices")
        raw = (
            fields_of(choices[0]).get("message") if isinstance(choices, list) and choices else None
        )
        if isinstance(raw, dict):
            message = read_message({"role": "assistant", **raw}, self.rest, "model_response")
        else:
            message = _said(event, kind, self.content(event))
        known = completed(response, message, self.rest, "model_response")
        cost = self.costs[self.answers] if self.answers < len(self.costs) else None
        self.answers += 1
        if isinstance(cost, dict):
            cost = cost.get("cost")
        finish = known.pop("finish_reason", None)
        created = known.pop("start", None)  # by another clock than the events'
        self.rest.put("model_response.created", response.get("created"))
        asked = self.episode.answer(
            (Choice(message=message, finish_reason=finish),),
            start=nanoseconds(event.get("timestamp")) or created,
            end=nanoseconds(event.get("timestamp")), cost_usd=cost_of(cost),
            model=known.get("response_model"), attributes=self.rest.take(), **known,
        )  # fmt: skip
        if response.get("id"):
            self.by_response[str(response["id"])] = asked
        return asked

    def noted(self, event: dict[str, Any], kind: str) -> None:
        """An event as a span of its own."""
        self.others(event)
        own = self.rest.take()
        for key in ("message", "content", "source"):
            if event.get(key):
                own[key] = self.rest.bounded(event[key])
        at = nanoseconds(event.get("timestamp"))
        self.episode.span("other", kind or "event", start=at, end=at, attributes=own)

    def noted_others(self, event: dict[str, Any]) -> None:
        self.rest.tally("event.timestamp")
        if own := self.rest.take():
            at = nanoseconds(event.get("timestamp"))
            self.episode.span("other", "message", start=at, end=at, attributes=own)

    def others(self, event: dict[str, Any]) -> None:
        """What of an event neither a message nor a call holds."""
        self.rest.put_others(event, _EVENT, "event")
        args = fields_of(event.get("args"))
        shown = frozenset(("content", "thought")) if "observation" not in event else frozenset()
        self.rest.put_others({k: v for k, v in args.items() if v != ""}, shown, "event.args")
        self.rest.put("event.extras", event.get("extras"))
        if event.get("message") not in (None, "", event.get("content"), args.get("content")):
            own = self.rest.attributes
            if "message" in own and "observation" in event:
                own["action.message"] = own["message"]
            own["message"] = self.rest.bounded(event["message"])

    def content(self, event: dict[str, Any]) -> str:
        args = fields_of(event.get("args"))
        if "observation" in event and isinstance(event.get("content"), str):
            return self.rest.shortened("content", event["content"])
        for value in (event.get("content"), args.get("content"), event.get("message")):
            if isinstance(value, str) and value:
                return self.rest.shortened("content", value)
        return ""


def _call(event: dict[str, Any], kind: str, called: dict[str, Any]) -> ToolCall | None:
    """The tool of an action; None where it only speaks."""
    id = called.get("tool_call_id")
    name = called.get("function_name")
    if isinstance(name, str) and name:
        return ToolCall(
            name=name, arguments=_arguments(called, id), id=id if isinstance(id, str) else None
        )
    if kind == "message":
        return None
    own = fields_of(event.get("args")) or {
        key: event[key] for key in ("command", "code", "path", "url") if event.get(key)
    }
    return ToolCall(name=kind, arguments=arguments_text(own))


def _arguments(called: dict[str, Any], id: object) -> str:
    """As the model wrote them, in its response."""
    choices = fields_of(called.get("model_response")).get("choices")
    first = fields_of(choices[0]) if isinstance(choices, list) and choices else {}
    made = fields_of(first.get("message")).get("tool_calls")
    for call in made if isinstance(made, list) else ():
        if isinstance(call, dict) and call.get("id") == id:
            return arguments_text(fields_of(call.get("function")).get("arguments"))
    return "{}"


def _said(event: dict[str, Any], kind: str, content: str) -> Message:
    """What the model must have said, of an action without its response."""
    args = fields_of(event.get("args"))
    thought = event.get("thought") or args.get("thought")
    parts: list[Part] = (
        list(say("assistant", thought).parts) if isinstance(thought, str) and thought else []
    )
    call = _call(event, kind, {})
    if call is not None:
        parts.append(call)
    elif content:
        parts += say("assistant", content).parts
    return Message(role="assistant", parts=tuple(parts))


def _are_events(sample: list[Any]) -> bool:
    head = sample[:8]
    return bool(head) and all(
        isinstance(one, dict)
        and ("role" not in one)
        and (isinstance(one.get("action"), str) or isinstance(one.get("observation"), str))
        for one in head
    )
