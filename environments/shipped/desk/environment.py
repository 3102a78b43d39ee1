"""A desk: the model serves a user by tools, under a policy, and is judged by what is so in the end.

Problems are tasks in tau2's format: our own order desk by default, or any file of that format for a
domain that is here (`domain`, `database`). Rewards play the calls of a trace again on the database
it began with, so recorded conversations are judged like rollouts.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import Field

from environments.define import Environment
from environments.harnesses.contract import Budget, Conversation, Episode, Tool
from environments.harnesses.user import ModelUser, ScriptedUser, answer
from environments.marks import Ungraded, metric, reward, step_reward
from environments.shipped.desk.board import BOARD
from environments.shipped.desk.domain import Call, Database, Domain
from environments.shipped.desk.judging import holds, is_useful, share_made, understood
from environments.shipped.desk.orders import ORDERS
from environments.shipped.desk.replay import (
    Played,
    Step,
    acted,
    attempt,
    made,
    play,
    start_of,
)
from environments.shipped.desk.task import (
    criteria,
    domain_of,
    history,
    initial,
    instructions,
    listed,
    needed,
    plain,
    scenario,
    told,
)
from environments.tasksets.contract import TaskSet
from flywheel.errors import ProjectError
from flywheel.ids import canonical
from flywheel.records import Message, Problem, Span, Trace

HERE = Path(__file__).resolve().parent
DOMAINS: Mapping[str, Domain] = {"orders": ORDERS, "board": BOARD}
BASIS = ("DB", "COMMUNICATE")
"""What a task is judged by that does not say."""


class Desk(Environment):
    """A shop's customers are served by tools, under a policy; the database in the end is judged.

    `problem.answer` is {"scenario", "initial_state", "criteria"}, from the tau2 reader.
    """

    harness = Conversation(budget=Budget(turns=24))
    tasks = TaskSet(kind="tau2", path="problems.jsonl", options={"policy": "policy.md"})

    class Config(Environment.Config):
        domain: Literal["orders", "board"] = "orders"
        database: str = Field("database.json", min_length=1)
        """The state at the start, relative to the environment's folder."""
        user: ModelUser | None = None
        """Plays the user, with each problem's persona and goal. None = by the problem's script."""

    config: Config

    @cached_property
    def domain(self) -> Domain:
        return DOMAINS[self.config.domain]

    @cached_property
    def database(self) -> Database:
        path = (self.folder or HERE) / Path(self.config.database).expanduser()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ProjectError(f"desk: config.database {path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise ProjectError(f"desk: config.database {path} is no JSON object")
        return found

    # --- how it is played ----------------------------------------------------------------------

    def posed(self, problem: Problem) -> Problem:
        """With the tools, and with what was said before, where the task begins in the middle."""
        tools = tuple(
            {"type": "function", "function": {"name": name, "description": action.description,
                                              "parameters": action.parameters}}
            for name, action in self.domain.actions.items()
        )  # fmt: skip
        system = tuple(one for one in problem.messages if one.role == "system")
        rest = tuple(one for one in problem.messages if one.role != "system")
        messages = (*system, *history(problem), *rest)
        return msgspec.structs.replace(problem, messages=messages, tools=tools)

    def slice(self, problem: Problem) -> str:
        """What our own tasks are of: cancel, return_one, late …"""
        purpose = str(problem.attributes.get("purpose", ""))
        return purpose if purpose.isidentifier() else "all"

    def tools(self, episode: Episode) -> Sequence[Tool]:
        database = self._start(episode.problem)

        def tool(name: str) -> Tool:
            async def call(**arguments: Any) -> Any:
                said, error = attempt(self.domain, database, Call(name, arguments))
                if error is not None:
                    raise NotDoneHere(error)
                return said

            action = self.domain.actions[name]
            return Tool(name, action.description, action.parameters, call)

        return [tool(name) for name in self.domain.actions]

    async def user(self, episode: Episode, said: str) -> str | None:
        memory = episode.state.setdefault("user", {})
        return await answer(self._user(episode.problem), said, memory, episode.spans)

    def _user(self, problem: Problem) -> ScriptedUser | ModelUser:
        about, goal = scenario(problem), instructions(problem)
        if self.config.user is not None:
            persona = str(about.get("persona") or self.config.user.persona)
            return self.config.user.model_copy(update={"goal": goal, "persona": persona})
        if "script" in about:
            return ScriptedUser.model_validate(about["script"])
        return ScriptedUser(turns=(goal,), done="left")

    def _start(self, problem: Problem) -> Database:
        """
        Raises:
            ProjectError: the task is of another domain.
        """
        of = domain_of(problem, self.config.domain)
        unknown = {one["name"] for one in listed(problem, "actions")} - set(self.domain.actions)
        if of != self.config.domain or unknown:
            named = f"its domain is {of!r}" if not unknown else f"it needs {sorted(unknown)}"
            raise ProjectError(
                f"desk: task {problem.attributes.get('id')}: {named}, and config.domain is "
                f"{self.config.domain!r}, whose actions are {', '.join(self.domain.actions)}"
            )
        return start_of(self.domain, self.database, initial(problem))

    # --- what it is judged by ------------------------------------------------------------------

    @reward(1.0)
    def final_state(self, trace: Trace, problem: Problem, state: dict[str, Any]) -> bool:
        """The database is as it should be; and what else the task is judged by: assertions of it,
        and, where "ACTION" is in its basis, that each needed action was made."""
        played = self._played(trace, problem, state)
        basis = criteria(problem).get("reward_basis") or BASIS
        right = True
        if "DB" in basis:
            wanted = play(self.domain, self._start(problem), needed(problem))
            right = canonical(played.database) == canonical(wanted.database)
        if "ENV_ASSERTION" in basis:
            asserted = listed(problem, "env_assertions")
            right = right and all(holds(self.domain, one, played) for one in asserted)
        if "ACTION" in basis:
            right = right and share_made(listed(problem, "actions"), played) == 1.0
        return right

    @reward(0.3)
    def communicated(self, trace: Trace, problem: Problem) -> float:
        """The share of what had to be said that the model said; 1 where nothing had to be."""
        facts = listed(problem, "communicate_info")
        said = plain(told(trace))
        return sum(plain(str(fact)) in said for fact in facts) / len(facts) if facts else 1.0

    @reward(0.2)
    def policy_kept(self, trace: Trace, problem: Problem, state: dict[str, Any]) -> bool:
        """No write that the policy forbids."""
        return not any(step.forbidden for step in self._played(trace, problem, state).steps)

    @metric
    def needed_made(self, trace: Trace, problem: Problem, state: dict[str, Any]) -> float:
        """The share of the needed actions that were made."""
        return share_made(listed(problem, "actions"), self._played(trace, problem, state))

    @step_reward(0.1)
    def succeeded(self, span: Span, trace: Trace, problem: Problem, state: dict[str, Any]) -> float:
        """The share of this step's calls that were done."""
        steps = self._steps(span, trace, problem, state)
        return sum(step.error is None for step in steps) / len(steps)

    @step_reward(0.1)
    def useful(self, span: Span, trace: Trace, problem: Problem, state: dict[str, Any]) -> float:
        """The share of this step's calls that were needed, or read something for the first time."""
        steps, needs = self._steps(span, trace, problem, state), listed(problem, "actions")
        played = self._played(trace, problem, state)
        return sum(is_useful(self.domain, one, played, needs) for one in steps) / len(steps)

    @step_reward(0.1)
    def error_understood(
        self, span: Span, trace: Trace, problem: Problem, state: dict[str, Any]
    ) -> bool:
        """After an error: the same call is not made again."""
        own = self._steps(span, trace, problem, state)
        return understood(own, self._played(trace, problem, state))

    def _played(self, trace: Trace, problem: Problem, state: dict[str, Any]) -> Played:
        if "played" not in state:
            state["played"] = play(self.domain, self._start(problem), made(trace))
        played: Played = state["played"]
        return played

    def _steps(
        self, span: Span, trace: Trace, problem: Problem, state: dict[str, Any]
    ) -> list[Step]:
        played = self._played(trace, problem, state)
        steps = [step for step in played.steps if step.span == span.id]
        if not steps:
            raise Ungraded("this step calls no tool")
        return steps

    # --- what is known to be right and wrong ---------------------------------------------------

    def gold(self, problem: Problem) -> list[Message] | None:
        facts = ", ".join(map(str, listed(problem, "communicate_info")))
        return self._acted(problem, listed(problem, "actions"), f"Done. {facts}")

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """Nothing done; the last needed write left out; what the user's words tempt to."""
        actions = listed(problem, "actions")
        answers: list[str | list[Message]] = ["I cannot help with that."] if actions else []
        known = self.domain.actions
        writes = [one for one in actions if one["name"] in known and known[one["name"]].writes]
        if writes:
            rest = [one for one in actions if one is not writes[-1]]
            answers.append(self._acted(problem, rest, "Done."))
        for trap in listed(problem, "traps"):
            answers.append(self._acted(problem, [*actions, trap], "Done."))
        return answers

    def _acted(self, problem: Problem, actions: Sequence[Any], last: str) -> list[Message]:
        calls = [Call(one["name"], dict(one["arguments"])) for one in actions]
        return acted(self.domain, self._start(problem), calls, last)


class NotDoneHere(Exception):
    """Why an action was not done, as the model is told."""
