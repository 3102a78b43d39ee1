# mypy: ignore-errors
"""A taskset of the verifiers package over a Flywheel environment. Copied into a job.

Its tasks are the job's problems; the reward is what Flywheel's environment gives, asked by
`flywheel_reward` beside this package.
"""

import asyncio
import json
from pathlib import Path

import verifiers.v1 as vf
from flywheel_reward import CHILD


class FlywheelData(vf.TaskData):
    problem: str = ""


class FlywheelTask(vf.Task[FlywheelData]):
    @vf.reward(weight=1.0)
    async def flywheel(self, trace) -> float:
        return await asyncio.to_thread(CHILD.ask, self.data.problem, trace.last_reply)


class FlywheelTaskset(vf.Taskset[FlywheelTask]):
    def load(self):
        rows = json.loads(Path(__file__).with_name("problems.json").read_text(encoding="utf-8"))
        for row in rows:
            data = FlywheelData(id=row["id"], problem=row["id"], prompt=row["prompt"])
            yield FlywheelTask(data, self.config.task)


__all__ = ["FlywheelTaskset"]
