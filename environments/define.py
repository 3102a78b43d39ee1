"""What good means, for one use case: a class with marked methods, in one short file.

Enter: the project's configuration of it. Leave: an object that evaluates a model, grades recorded
traces and feeds training alike. Invariant: the decorators only mark; nothing runs until
`environments.grading` or `environments.mining` calls it, and each method gets what it names.
"""

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from environments.harnesses.contract import Episode, HarnessConfig, Single, Tool
from environments.runtimes.contract import RuntimeConfig
from environments.tasksets.contract import Read, TaskSet
from flywheel.errors import FlywheelError, ProjectError
from flywheel.ids import canonical, digest
from flywheel.records import Feedback, Message, Part, Problem, Trace, model_spans
from flywheel.reviews import states_answer

Kind = Literal["reward", "metric", "group_reward", "step_reward", "stop", "setup", "cleanup"]
Marked = TypeVar("Marked", bound=Callable[..., Any])
ARGUMENTS = (
    *("trace", "problem", "answer", "choice", "group", "state", "span"),
    *("runtime", "sandbox", "judge"),
)
"""What a marked method may name: the Trace, its Problem (with the truth), the final text, the
Choice it came from, all traces of the problem, a dict shared by all of one trace, and the span of a
step reward; the episode's own runtime (a recorded trace has none: null), a new runtime of the same
kind (also for recorded traces), and the judge."""


class Ungraded(FlywheelError):
    """Raised by a reward that cannot be given here; its text becomes the null's reason."""


class Mark(NamedTuple):
    kind: Kind
    weight: float
    truth: bool
    """False = does not compare with the problem's answer, so it is given without one too."""


class Method(NamedTuple):
    """A marked method: its name is the reward's, its arguments are what it is given."""

    name: str
    mark: Mark
    arguments: tuple[str, ...]

    @property
    def needs_truth(self) -> bool:
        return self.mark.truth and "problem" in self.arguments


def _marker(kind: Kind, weight: float, truth: bool) -> Callable[[Marked], Marked]:
    if not (math.isfinite(weight) and weight >= 0):
        raise ProjectError(f"the weight of a {kind} must be a number from 0 up, not {weight}")

    def mark(method: Marked) -> Marked:
        method._flywheel_mark = Mark(kind, weight, truth)  # type: ignore[attr-defined]
        return method

    return mark


def reward(weight: float = 1.0, *, truth: bool = True) -> Callable[[Marked], Marked]:
    """Marks a method that returns one number for a trace. `truth=False`: see `Mark`."""
    return _marker("reward", weight, truth)


def metric(method: Marked) -> Marked:
    """Marks a number that is looked at and never trained on."""
    return _marker("metric", 0.0, True)(method)


def group_reward(weight: float = 1.0, *, truth: bool = True) -> Callable[[Marked], Marked]:
    """Marks a method that takes `group` and returns a list of numbers parallel to it."""
    return _marker("group_reward", weight, truth)


def step_reward(weight: float = 1.0, *, truth: bool = True) -> Callable[[Marked], Marked]:
    """Marks a method that takes `span` and returns one number for each model call."""
    return _marker("step_reward", weight, truth)


def stop(method: Marked) -> Marked:
    """Marks a condition that ends an episode of several steps."""
    return _marker("stop", 0.0, False)(method)


def setup(method: Marked) -> Marked:
    """Marks what is done before the first call: files into `runtime`, facts into `state`."""
    return _marker("setup", 0.0, False)(method)


def cleanup(method: Marked) -> Marked:
    """Marks what is done after an episode, however it ended."""
    return _marker("cleanup", 0.0, False)(method)


class Environment:
    """Base of all environments. A subclass adds marked methods and, where it must, the hooks."""

    name: ClassVar[str] = ""
    """What problems are filed under; "" = the class's name in lower case."""
    version: ClassVar[str] = "1"
    limit_s: ClassVar[float] = 10.0
    """Seconds that one reward of one trace may take."""

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

    config: Config
    source: str | None = None
    """The file's text, where it was loaded by path."""
    folder: Path | None = None
    """Where the file lies; task sets are found from there."""

    def __init_subclass__(cls, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()
        if not issubclass(cls.Config, Environment.Config):
            joined = type("Config", (cls.Config, Environment.Config), {})
            type.__setattr__(cls, "Config", joined)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = self._validated(dict(config or {}))
        self.harness = self.config.harness or self.harness
        self.runtime = self.config.runtime or self.runtime
        self.tasks = self.config.tasks or self.tasks

    @classmethod
    def _validated(cls, config: dict[str, Any]) -> Config:
        try:
            return cls.Config.model_validate(config)
        except ValidationError as error:
            lines = [_explain(item, sorted(cls.Config.model_fields)) for item in error.errors()]
            message = f"environment {cls.name}: its config does not fit:\n" + "\n".join(lines)
            raise ProjectError(message) from error

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """The marked methods, in the order they are written in, bases first.

        Raises:
            ProjectError: one names something that cannot be given to it.
        """
        names = {name: None for cls in reversed(type(self).__mro__) for name in vars(cls)}
        marked = (
            (name, getattr(getattr(type(self), name), "_flywheel_mark", None)) for name in names
        )
        return tuple(self._method(name, mark) for name, mark in marked if mark is not None)

    def _method(self, name: str, mark: Mark) -> Method:
        arguments = tuple(inspect.signature(getattr(self, name)).parameters)
        for argument in arguments:
            if argument not in ARGUMENTS:
                near = difflib.get_close_matches(argument, ARGUMENTS, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ARGUMENTS)}"
                raise ProjectError(f"{self.name}.{name} names {argument!r}, never given; {hint}")
        for kind, needed in (("group_reward", "group"), ("step_reward", "span")):
            if (mark.kind == kind) != (needed in arguments) and mark.kind != "stop":
                raise ProjectError(
                    f"{self.name}.{name} is a {mark.kind}: a {kind} names {needed!r}, no other does"
                )
        return Method(name, mark, arguments)

    @cached_property
    def digest(self) -> str:
        """Of the source, the configuration and the version: who graded."""
        source = self.source if self.source is not None else inspect.getsource(type(self))
        return digest(self.name, self.version, self.config.model_dump(mode="json"), source)

    # --- hooks of the task set and of harnesses ------------------------------------------------

    def problems(self) -> Read:
        """All problems of the task set, each with its side."""
        from environments.tasksets.table import read

        return read(self)

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

    # --- hooks of mining ---------------------------------------------------------------------

    def problem_of(self, trace: Trace, feedback: Sequence[Feedback]) -> Problem | None:
        """The problem that a recorded trace posed, with what people said later as its truth.

        By default the prompt of its first model call. None = this trace poses none.
        """
        calls = model_spans(trace)
        if not calls or calls[0].call is None or not calls[0].call.input:
            return None
        call = calls[0].call
        answer, reason = self._agreed(feedback)
        problem = Problem(
            environment=self.name,
            messages=call.input,
            tools=call.tools or (),
            text=self.text(call.input),
            conversation=trace.conversation,
            user=trace.user,
            trace_id=trace.id,
            answer=answer,
            truth_from=None if reason else self._from(feedback),
            attributes={"truth": reason} if reason else {},
        )
        return msgspec.structs.replace(problem, slice=self.slice(problem))

    def _agreed(self, feedback: Sequence[Feedback]) -> tuple[Any, str | None]:
        """The one answer that all feedback states, or None and why there is none. Feedback comes
        from outside and may be any JSON: what `truth` cannot read is a reason, not a crash.
        Where a reviewer looked at the answer, what other people and systems said stands back."""
        truths: dict[bytes, Any] = {}
        for item in self._reviews(feedback) or feedback:
            try:
                said = self.corrected(item) if states_answer(item) else self.truth(item)
                truths |= {} if said is None else {canonical(said): said}
            except Exception as error:
                return None, f"feedback {item.id} cannot be read: {type(error).__name__}: {error}"
        if len(truths) > 1:
            return None, f"conflicting feedback: {len(truths)} different answers"
        return next(iter(truths.values()), None), None if truths else "no known answer"

    def _reviews(self, feedback: Sequence[Feedback]) -> list[Feedback]:
        """Reviews that state a truth of this environment, or that cannot be read."""
        found = []
        for item in filter(states_answer, feedback):
            try:
                if self.corrected(item) is not None:
                    found.append(item)
            except Exception:  # _agreed meets it again and says so
                found.append(item)
        return found

    def _from(self, feedback: Sequence[Feedback]) -> str:
        return "human" if self._reviews(feedback) else "feedback"

    def corrected(self, feedback: Feedback) -> Any:
        """The right answer that a reviewer states; `value` is the whole answer as the model should
        have written it: text, or the JSON that this is. None = it states none.

        By default what `truth` reads of it.
        """
        return self.truth(feedback)

    def truth(self, feedback: Feedback) -> Any:
        """The right answer that one feedback states; None = it states none."""
        return feedback.value if feedback.kind == "demonstration" else None

    def text(self, messages: Sequence[Message]) -> str:
        """The user's own words, without what all prompts share."""
        return "\n".join(message.text for message in messages if message.role == "user")

    def slice(self, problem: Problem) -> str:
        """The group that evaluation reports by."""
        return "all"


def _explain(item: Any, known: list[str]) -> str:
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"  {key}: {item['msg']}"
    near = difflib.get_close_matches(key, known, n=1)
    return f"  {key}: unknown key; " + (f"did you mean {near[0]!r}?" if near else f"known: {known}")
