"""What good means, for one use case: a class with marked methods, in one short file.

Enter: the project's configuration of it. Leave: an object that evaluates a model, grades recorded
traces and feeds training alike. Invariant: the decorators (`environments.marks`) only mark; nothing
runs until grading, mining or an episode calls it, and each method gets what it names.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from environments.from_traffic import FromTraffic
from environments.graders.script import Script, methods_of, scripts_of
from environments.harnesses.contract import Episode, HarnessConfig, Single, Tool
from environments.marks import (
    Body,
    Mark,
    Method,
    Ungraded,
    cleanup,
    group_reward,
    mark_of,
    method_of,
    metric,
    reward,
    setup,
    step_reward,
    stop,
    weighted,
)
from environments.overlay import PARTS, laid_over
from environments.runtimes.contract import RuntimeConfig
from environments.tasksets.contract import Read, TaskSet
from environments.wrong_keys import explain
from flywheel.errors import ProjectError
from flywheel.ids import canonical, digest
from flywheel.records import Message, Part, Problem

__all__ = [
    "Environment",
    "Mark",
    "Method",
    "Ungraded",
    "cleanup",
    "group_reward",
    "metric",
    "reward",
    "setup",
    "step_reward",
    "stop",
]


class Environment(FromTraffic, metaclass=Body):
    """Base of all environments. A subclass adds marked methods and, where it must, the hooks:
    those of its task set and harness are here, those of mining in its base class."""

    version: ClassVar[str] = "1"
    limit_s: ClassVar[float] = 10.0
    """Seconds that one reward of one trace may take."""
    long_limit_s: ClassVar[float] = 120.0
    """The same of one that names `runtime`, `sandbox` or `judge`, and of a grader script."""
    graders: ClassVar[Sequence[str]] = ()
    """Grader scripts beside the file: see `environments.graders.script`."""

    harness: HarnessConfig = Single()
    """How the model acts, unless the configuration says otherwise."""
    runtime: RuntimeConfig | None = None
    """Where its code runs. None = it runs none."""
    tasks: TaskSet | None = None
    """Where its problems come from. None = mined from traffic, or made by `problems`."""

    class Config(BaseModel):
        """What the project's file may set under [environment.config]; a subclass adds fields."""

        model_config = ConfigDict(extra="forbid", frozen=True)
        weights: Mapping[str, float] = {}
        """Of rewards, by name, instead of what the file gives them."""
        harness: HarnessConfig | None = None
        runtime: RuntimeConfig | None = None
        tasks: TaskSet | None = None
        graders: tuple[str, ...] = ()
        """Scripts beside those of the class."""

    config: Config
    source: str | None = None
    """The text of its file, or of its package's files; None = not loaded from one."""
    folder: Path | None = None
    """Where the file lies; task sets and grader scripts are found from there."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        name = cls.name
        if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 100):
            raise ProjectError(
                f"{cls.__name__}.name must be a short printable text, not {name!r:.80}"
            )
        for hook, base in (*vars(FromTraffic).items(), *vars(Environment).items()):
            if inspect.isfunction(base) and not callable(given := getattr(cls, hook)):
                raise ProjectError(
                    f"{cls.__name__}.{hook} must be a method: "
                    f"`def {hook}{_arguments(base)}`, not {type(given).__name__}"
                )
        if not (isinstance(cls.Config, type) and issubclass(cls.Config, BaseModel)):
            raise ProjectError(
                f"{cls.__name__}.Config is no model: write `class Config(Environment.Config)`"
            )
        if not issubclass(cls.Config, Environment.Config):
            joined = type("Config", (cls.Config, Environment.Config), {})
            type.__setattr__(cls, "Config", joined)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = self._validated(self._whole(config or {}))
        self.harness = self.config.harness or self.harness
        self.runtime = self.config.runtime or self.runtime
        self.tasks = self.config.tasks or self.tasks

    @classmethod
    def _whole(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """What it says of a part (`harness`) is laid over what the class says of it."""
        whole = dict(config)
        for name in PARTS:
            default = cls.Config.model_fields[name].default
            own = default if isinstance(default, BaseModel) else getattr(cls, name)
            if isinstance(own, BaseModel) and isinstance(whole.get(name), Mapping):
                whole[name] = laid_over(own, whole[name])
        return whole

    @classmethod
    def _validated(cls, config: dict[str, Any]) -> Config:
        try:
            return cls.Config.model_validate(config)
        except ValidationError as error:
            lines = "\n".join(explain(cls.Config, error))
            message = f"environment {cls.name}: its config does not fit:\n{lines}"
            raise ProjectError(message) from error

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The marked methods, in the order they are written in, bases first.

        Raises:
            ProjectError: one names what cannot be given to it, or a weight is of no reward.
        """
        names = {name: None for cls in reversed(type(self).__mro__) for name in vars(cls)}
        marked = ((name, mark_of(getattr(type(self), name))) for name in names)
        found = [
            method_of(self.name, name, mark, getattr(self, name)) for name, mark in marked if mark
        ]
        for method in found:
            if "sandbox" in method.arguments and self.runtime is None:
                raise ProjectError(
                    f"{self.name}.{method.name} names 'sandbox', and the environment has no "
                    "runtime: write `runtime = Sandbox()` in its class"
                )
        return tuple(weighted(self.name, [*found, *self._scripted(found)], self.config.weights))

    def _scripted(self, found: Sequence[Method]) -> list[Method]:
        taken = {method.name: self.name for method in found}
        given = [method for script in self.grader_scripts for method in methods_of(script)]
        for method in given:
            if method.name in taken:
                raise ProjectError(
                    f"{method.script} gives {method.name!r}, and so does {taken[method.name]}"
                )
            taken[method.name] = str(method.script)
        return given

    @cached_property
    def grader_scripts(self) -> list[Script]:
        """What stands in `graders`, of the class and of its configuration, read."""
        return scripts_of(self)

    @cached_property
    def digest(self) -> str:
        """Of the source, the configuration and the version: who graded."""
        source = self.source if self.source is not None else inspect.getsource(type(self))
        scripts = [script.text for script in self.grader_scripts]
        return digest(self.name, self.version, self.config.model_dump(mode="json"), source, scripts)

    # --- hooks of the task set and of harnesses ------------------------------------------------

    def problems(self) -> Read:
        """All problems of the task set, each with its side."""
        from environments.tasksets.table import read

        return read(self)

    def made(self, tasks: TaskSet) -> Iterable[Problem]:
        """Problems of the environment's own, where `tasks.kind` is "made": `tasks.limit` of them,
        by `tasks.seed`."""
        raise ProjectError(f"{self.name}: its tasks are of kind 'made', and it has no `made`")

    def posed(self, problem: Problem) -> Problem:
        """A problem of the task set as it is put to the model: with instructions, other messages,
        another answer. Its side and its id follow from what this returns."""
        return problem

    def tools(self, episode: Episode) -> Sequence[Tool]:
        """What the model may call in this episode."""
        return ()

    async def user(self, episode: Episode, said: str) -> str | None:
        """What the user answers to what the model `said`; None = the user leaves."""
        return None

    async def check(self, episode: Episode, answer: str) -> str | Sequence[Part] | None:
        """What is wrong with an answer, as the model is told: text, or parts with a picture for
        models that can see; None = nothing."""
        return None

    async def act(self, episode: Episode) -> None:
        """How the model acts. An override is a harness of one's own: it asks by
        `environments.harnesses.asking.ask`, or by any client at `episode.access`."""
        from environments.harnesses.table import harness_for

        await harness_for(self.harness).run(episode)

    def lacks(self) -> str | None:
        """What this installation lacks for it, and what brings it; None = nothing."""
        return None

    # --- hooks of `flywheel env check` -------------------------------------------------------

    def gold(self, problem: Problem) -> str | list[Message] | None:
        """An answer that earns full marks: its text, or the messages that the model says with the
        results of its tools between them. None = none is known.

        By default the problem's answer: text as it is, anything else as JSON.
        """
        answer = problem.answer
        if answer is None or isinstance(answer, str):
            return answer
        return canonical(answer).decode()

    def wrong(self, problem: Problem) -> Sequence[str | list[Message]]:
        """Answers that must score low, the near misses first of all."""
        return ()


def _arguments(hook: Any) -> str:
    return f"({', '.join(inspect.signature(hook).parameters)})"
