"""A project whose environment asks a judge, traffic of it, and people who reviewed it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.records import Choice, Feedback, ModelCall, Span, Trace, say
from flywheel.reviews import NAME
from storage.committer import commit
from storage.inbox import Inbox

ENVIRONMENT = """
from environments.define import Environment, group_reward, reward


class Desk(Environment):
    @reward()
    async def kind(self, judge, answer):
        return await judge.score("Is it kind?", answer)

    @group_reward()
    async def kinder(self, judge, group):
        texts = [trace.spans[0].call.choices[0].message.text for trace in group]
        said = await judge.compare("Which is kinder?", *texts)
        return [said.value, 1 - said.value]

    def slice(self, problem):
        return "even" if len(problem.text) % 2 == 0 else "odd"
"""
DAY_NS = 86_400 * 10**9


def write_project(folder: Path, url: str, environment: str = ENVIRONMENT, **judge: Any) -> Project:
    folder.mkdir()
    (folder / "environment.py").write_text(environment)
    keys = {"url": url, "model": "scripted", "timeout_s": 30.0, **judge}
    lines = "".join(f"{name} = {_toml(value)}\n" for name, value in keys.items())
    (folder / "flywheel.toml").write_text(
        'name = "desk"\nmodel.base = "base"\nenvironment.path = "environment.py:Desk"\n'
        f"[judge]\n{lines}"
    )
    return load_project(folder)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def trace(number: int, answer: str) -> Trace:
    call = ModelCall(
        input=(say("user", "help" + "!" * (number % 2)),),
        choices=(Choice(message=say("assistant", answer), finish_reason="stop"),),
    )
    at = 1000 * DAY_NS + (number % 3) * DAY_NS
    span = Span(id="call", kind="model", start=at, end=at + 1, call=call)
    name = f"t{number:03}"
    return Trace(id=name, project="desk", source="gateway", external_id=name, origin="production",
                 spans=(span,))  # fmt: skip


def review(trace_id: str, accepted: bool, by: str = "ann", at: int = 1) -> Feedback:
    return Feedback(
        project="desk", target=trace_id, name=NAME, value=accepted, kind="boolean", by=by, at=at,
        attributes={"verdict": "accepted" if accepted else "rejected"},
    )  # fmt: skip


def compared(first: str, second: str, value: str, by: str = "ann") -> list[Feedback]:
    """As the Review page saves it: once from each side."""
    turned = {"better": "worse", "worse": "better"}.get(value, value)
    return [
        Feedback(project="desk", target=one, name=f"compared:{other}", value=said, kind="category",
                 by=by, at=1)
        for one, other, said in ((first, second, value), (second, first, turned))
    ]  # fmt: skip


def store(home: Home, records: Sequence[Any]) -> None:
    Inbox(home).append(list(records))
    commit(home)
