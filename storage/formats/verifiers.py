"""Results of verifiers: {prompt, completion, reward, task, info, …}, one rollout a row.

Rewards and metrics that the row states stand as feedback of its environment's, not as grades of
ours; the truth (`answer`) stands among the attributes. A row's `id` names the example, and many
rollouts share it, so that a trace is named by the whole row.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Feedback, Message

from .episode import Episode, imported, told
from .messages import name_of, read_messages, read_tools
from .parsed import Context, Parsed, Rest
from .times import nanoseconds

SOURCE = "import:verifiers"

_ROW = frozenset(("prompt", "completion", "reward", "id", "example_id", "task", "answer", "tools",
                  "generation_ms", "scoring_ms", "total_ms", "metrics", "error",
                  "timing"))  # fmt: skip
_KEPT = ("id", "example_id", "task", "answer", "generation_ms", "scoring_ms", "total_ms", "timing")
_NOT_METRICS = frozenset(("info", "state", "stop_condition", "is_completed", "is_truncated"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict) or "reward" not in sample:
        return False
    said = sample.get("completion")
    return isinstance(sample.get("prompt"), list | str) and isinstance(said, list | str)


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    before = _messages(row.get("prompt"), "user", rest, "prompt")
    after = _messages(row.get("completion"), "assistant", rest, "completion")
    if not before and not after:
        raise BadRecord("is empty, and so is the completion", field="prompt")
    tools = None if row.get("tools") is None else read_tools(row["tools"], rest, "tools")
    metrics = _metrics(row)
    rest.put_others({k: v for k, v in row.items() if k not in metrics}, _ROW, "")
    own = {key: row[key] for key in _KEPT if row.get(key) is not None} | rest.take()
    episode = Episode(tools=tools)
    error = row.get("error")
    root = episode.span(
        "agent", str(row.get("task") or "verifiers"), id="agent", attributes=own,
        error=str(error) if error else None,
    )  # fmt: skip
    episode.parents = (root,)
    episode.hear(*before)
    told(episode, after)
    said_at = nanoseconds(row.get("timestamp")) or 0
    trace = imported(SOURCE, digest(row), episode.spans(), context)
    said = [
        Feedback(
            project=trace.project, target=trace.id, name=name, value=value, kind="number",
            by="verifiers", at=said_at,
        )
        for name, value in metrics.items()
    ]  # fmt: skip
    return Parsed([trace], said, rest.counts)


def _messages(value: object, role: str, rest: Rest, path: str) -> tuple[Message, ...]:
    """A list of messages, or the text of one."""
    if isinstance(value, str):
        return (Message(role=role, parts=(rest.text(value),)),) if value else ()
    if not isinstance(value, list):
        raise BadRecord(f"is {name_of(value)}, neither messages nor text", field=path)
    return read_messages(value, rest, path)


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    """The reward, and each number beside it that is no count of time or place."""
    found: dict[str, Any] = dict(row)
    if isinstance(row.get("metrics"), dict):
        found |= row["metrics"]
    return {
        key: value
        for key, value in found.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and (key == "reward" or key not in _ROW | _NOT_METRICS)
        and not key.endswith(("_ms", "_id", "tokens"))
    }
