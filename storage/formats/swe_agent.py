"""SWE-agent trajectories (.traj): {history, trajectory?, info?, replay_config?}, one run a file.

`history` is what the model saw and said, `trajectory` what its actions came to; the k-th answer of
the main agent is the k-th step. Totals of the run stand on its agent span: calls have none of their
own. Demonstrations in the history are input, no answers of this run.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import ToolCall, ToolResult, say

from .episode import Episode, Past, imported, told
from .messages import name_of, read_message, read_sampling, read_tools
from .nested import fields_of, nested
from .parsed import Context, Parsed, Rest
from .parts import arguments_text

SOURCE = "import:swe_agent"

_ROW = frozenset(("history", "trajectory", "info", "replay_config", "environment"))
_INFO = frozenset(("exit_status", "submission", "model_stats"))
_MESSAGE = ("agent", "is_demo", "message_type", "thought", "action", "tool_call_ids", "tags",
            "cache_control", "thinking_blocks")  # fmt: skip
_STEP = frozenset(("action", "observation", "response", "thought", "execution_time", "state",
                   "query", "messages"))  # fmt: skip
_ENDED = ("submitted", "Submitted")


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    history, steps = sample.get("history"), sample.get("trajectory")
    if isinstance(steps, list) and steps:
        return isinstance(steps[0], dict) and "action" in steps[0] and "observation" in steps[0]
    history = nested(history)
    first = history[0] if isinstance(history, list) and history else None
    return isinstance(first, dict) and "role" in first and "agent" in first


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    history, steps = nested(row.get("history")) or [], row.get("trajectory") or []
    if not isinstance(history, list) or not isinstance(steps, list):
        raise BadRecord(f"is {name_of(history)}, not a list of messages", field="history")
    config, info = fields_of(row.get("replay_config")), fields_of(row.get("info"))
    agent = fields_of(config.get("agent"))
    asked = fields_of(agent.get("model"))
    episode = Episode(model=_text(asked.get("name")), sampling=read_sampling(asked, {}))
    episode.tools = _tools(agent, rest)
    root = _root(episode, row, info, config, rest)
    if history:
        _histories(episode, history, steps, root, rest)
    else:
        _steps_alone(episode, steps, rest)
    external = _identity(row, config, history, steps)
    trace = imported(SOURCE, external, episode.spans(), context)
    return Parsed([trace], [], rest.counts)


def _root(
    episode: Episode, row: dict[str, Any], info: dict[str, Any], config: dict[str, Any], rest: Rest
) -> str:
    """The run as a whole, with what its totals say."""
    own: dict[str, Any] = dict(fields_of(info.get("model_stats")))
    for key in ("exit_status", "submission"):
        if info.get(key) is not None:
            own[key] = rest.bounded(info[key])
    rest.put_others(row, _ROW, "")
    rest.put_others(info, _INFO, "info")
    rest.put("replay_config", config)
    rest.put("environment", row.get("environment"))
    ended = info.get("exit_status")
    root = episode.span(
        "agent",
        "swe-agent",
        id="agent",
        attributes={**own, **rest.take()},
        error=str(ended) if ended and not str(ended).startswith(_ENDED) else None,
    )
    episode.parents = (root,)
    return root


def _histories(
    episode: Episode, history: list[Any], steps: list[Any], root: str, rest: Rest
) -> None:
    """The main agent's messages, then each other agent's as one of its own."""
    by_agent: dict[str, list[Any]] = {}
    for message in history:
        about = message if isinstance(message, dict) else {}
        for key in ("agent", "message_type", "is_demo"):
            if about.get(key):
                rest.tally(f"history.{key}")
        name = about.get("agent")
        by_agent.setdefault(str(name or "main"), []).append(message)
    for number, (name, messages) in enumerate(by_agent.items()):
        if number:
            own = episode.span("agent", name, id=f"agent-{name}", parents=(root,))
            episode.past, episode.parents = Past(), (own,)
        _history(episode, messages, [] if number else steps, rest)


def _history(episode: Episode, history: list[Any], steps: list[Any], rest: Rest) -> None:
    messages = [read_message(_plain(one), rest, f"history[{at}]") for at, one in enumerate(history)]
    left = iter(steps)
    known: dict[int, dict[str, Any]] = {}
    for at, (raw, message) in enumerate(zip(history, messages, strict=True)):
        if message.role != "assistant" or raw.get("is_demo"):
            continue
        own = _of_message(raw, rest)
        taken = next(left, None)
        step, action = _of_step(taken, rest), raw.get("action")
        step["attributes"] |= _told_otherwise(taken, raw, rest)
        known[at] = {"attributes": own}
        if message.tool_calls:  # the tool's message holds the result
            own |= step["attributes"]
        elif isinstance(action, str) and action.strip():
            known[at]["commands"] = [(_command(action), step)]
    ended = list(left)
    told(episode, messages, known, ends=not ended)
    if ended:  # the step that ended the run is not among what the model saw
        _steps_alone(episode, ended, rest)


def _plain(message: Any) -> Any:
    """A message without SWE-agent's own keys; a tool's message names its call."""
    if not isinstance(message, dict):
        return message
    plain = {key: value for key, value in message.items() if key not in _MESSAGE}
    ids = message.get("tool_call_ids")
    if (
        isinstance(ids, list)
        and ids
        and "tool_call_id" not in plain
        and plain.get("role") == "tool"
    ):
        plain["tool_call_id"] = ids[0]
    blocks = message.get("thinking_blocks")
    if isinstance(blocks, list) and blocks and isinstance(plain.get("content"), str):
        plain["content"] = [*blocks, {"type": "text", "text": plain["content"]}]
    return plain


def _of_message(message: dict[str, Any], rest: Rest) -> dict[str, Any]:
    for key in ("tags", "cache_control"):
        rest.put(f"history.{key}", message.get(key))
    if message.get("tool_calls"):
        rest.put("history.action", message.get("action"))
    thought = message.get("thought")
    if isinstance(thought, str) and thought not in str(message.get("content") or ""):
        rest.put("history.thought", thought)
    return rest.take()


def _told_otherwise(step: Any, message: dict[str, Any], rest: Rest) -> dict[str, Any]:
    """What a step says of the answer that the history says in other words."""
    for key, own in (("response", "content"), ("action", "action")):
        said = step.get(key) if isinstance(step, dict) else None
        if isinstance(said, str) and said.strip() not in str(message.get(own) or ""):
            rest.put(f"trajectory.{key}", said)
    return rest.take()


def _of_step(step: Any, rest: Rest) -> dict[str, Any]:
    """What a step says of the tool's run."""
    if not isinstance(step, dict):
        return {"result": None, "attributes": {}}
    rest.put_others(step, _STEP, "trajectory")
    for key in ("query", "messages"):
        if step.get(key):  # the history once more, as it was sent
            rest.tally(f"trajectory.{key}")
    rest.put("trajectory.state", nested(step.get("state")))
    attributes = rest.take()
    seconds = step.get("execution_time")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        attributes["execution_time"] = seconds
    seen = step.get("observation")
    content = None if seen is None else rest.shortened("observation", arguments_text(seen))
    result = None if content is None else ToolResult(content=content)
    return {"result": result, "attributes": {**attributes, **rest.take()}}


def _command(action: str) -> ToolCall:
    """A command that the model wrote into its text, under its first word."""
    name = action.split(None, 1)[0][:64]
    return ToolCall(name=name, arguments=arguments_text({"command": action}))


def _steps_alone(episode: Episode, steps: list[Any], rest: Rest) -> None:
    """Steps of which no history is left: what was said, and what came of it."""
    for at, step in enumerate(steps):
        if not isinstance(step, dict):
            raise BadRecord(f"is {name_of(step)}, not a step", field=f"trajectory[{at}]")
        said = step.get("response") or step.get("thought")
        if isinstance(said, str) and said:
            told(episode, (say("assistant", said),))
        action = step.get("action")
        fields = _of_step(step, rest)
        if isinstance(action, str) and action.strip():
            episode.ran(_command(action), **fields)
        elif isinstance(fields["result"], ToolResult):
            episode.span("other", "observation", result=fields["result"])
        if isinstance(step.get("observation"), str):
            episode.hear(say("user", step["observation"]))


def _tools(agent: dict[str, Any], rest: Rest) -> tuple[dict[str, Any], ...] | None:
    tools = agent.get("tools")
    offered = tools.get("tools") if isinstance(tools, dict) else None
    return None if not isinstance(offered, list) else read_tools(offered, rest, "tools")


def _identity(
    row: dict[str, Any], config: dict[str, Any], history: list[Any], steps: list[Any]
) -> str:
    """The problem's own id with what was said; the same problem is tried many times."""
    problem = config.get("problem_statement")
    named = _text(problem.get("id")) if isinstance(problem, dict) else None
    said = digest(history, [step.get("action") for step in steps if isinstance(step, dict)])
    return f"{named}:{said}" if named else said


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
