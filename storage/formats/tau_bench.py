"""tau-bench results: {task_id, reward, info, traj, trial}.

A result is one episode; its reward stands as feedback of the benchmark's, not as a grade of ours.
The same task is tried many times, so that a trace is named by task, trial and what was said.
"""

from typing import Any

from flywheel.errors import BadRecord
from flywheel.ids import digest
from flywheel.records import Feedback

from .completed import cost_of
from .episode import Episode, imported, told
from .messages import read_messages
from .nested import fields_of
from .parsed import Context, Parsed

SOURCE = "import:tau_bench"

_ROW = frozenset(("task_id", "reward", "info", "traj", "trial"))
_INFO = frozenset(("user_cost", "reward_info"))


def recognise(sample: object) -> bool:
    if not isinstance(sample, dict):
        return False
    return isinstance(sample.get("traj"), list) and "task_id" in sample and "reward" in sample


def read(row: dict[str, Any], context: Context) -> Parsed:
    rest = context.rest()
    messages = read_messages(row["traj"], rest, "traj")
    if not messages:
        raise BadRecord("is empty: an episode needs a message", field="traj")
    info = fields_of(row.get("info"))
    rest.put_others(row, _ROW, "")
    rest.put_others(info, _INFO, "info")
    rest.put("info.reward_info", info.get("reward_info"))
    own = {"task_id": row.get("task_id"), "trial": row.get("trial"), **rest.take()}
    if cost_of(info.get("user_cost")) is not None:
        own["user_cost"] = info["user_cost"]
    episode = Episode()
    episode.parents = (episode.span("agent", "tau-bench", id="agent", attributes=own),)
    told(episode, messages)
    external = f"{row.get('task_id')}:{row.get('trial')}:{digest(row['traj'])}"
    trace = imported(SOURCE, external, episode.spans(), context)
    said = []
    reward = row.get("reward")
    if isinstance(reward, int | float) and not isinstance(reward, bool):
        said.append(
            Feedback(
                project=trace.project, target=trace.id, name="reward", value=reward,
                kind="number", by="tau-bench",
            )
        )  # fmt: skip
    else:
        rest.put("reward", reward)
    return Parsed([trace], said, rest.counts)
