# mypy: ignore-errors
"""A taskset of the verifiers package over problems that Flywheel exported. Copied into a folder.

Its tasks are the lines of `train.jsonl` beside it. The reward is 1 where the reply is the truth:
equal as JSON, else as text without regard to case and white space. A problem whose truth is not
known has no reward.
"""

import json
from pathlib import Path

import verifiers.v1 as vf


class ProblemData(vf.TaskData):
    truth: str | None = None


class ProblemTask(vf.Task[ProblemData]):
    @vf.reward(weight=1.0)
    async def equals_truth(self, trace) -> float:
        if self.data.truth is None:
            raise ValueError(f"the truth of problem {self.data.id} is not known")
        return float(_plain(trace.last_reply) == _plain(self.data.truth))


class FlywheelProblems(vf.Taskset[ProblemTask]):
    def load(self):
        path = Path(__file__).with_name("train.jsonl")
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                data = ProblemData(
                    id=row["example_id"], prompt=row["prompt"], truth=row.get("answer")
                )
                yield ProblemTask(data, self.config.task)


def _plain(text):
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return " ".join(value.split()).casefold() if isinstance(value, str) else value


__all__ = ["FlywheelProblems"]
