"""What marks the methods of an environment, and what each may name.

Enter: functions of a class body. Leave: the same functions with a Mark, and a Method for each, with
its signature checked. Invariant: marking runs nothing; a method whose arguments could never be
given is an error when the environment is loaded, not a null in every grade.
"""

import difflib
import inspect
import math
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from flywheel.errors import FlywheelError, ProjectError

Kind = Literal["reward", "metric", "group_reward", "step_reward", "stop", "setup", "cleanup"]
Of = Literal["model", "tool", "any"]
Marked = TypeVar("Marked", bound=Callable[..., Any])
ARGUMENTS = (
    *("trace", "problem", "answer", "choice", "group", "state", "span"),
    *("runtime", "sandbox", "judge"),
)
"""What a marked method may name: the Trace, its Problem (with the truth), the final text, the
Choice it came from, all traces of the problem that can be graded, a dict shared by all of one trace
(it begins as the episode's own, where that was kept), and the span of a step reward; the episode's
own runtime (a recorded trace has none: null), a new runtime of the same kind (also for recorded
traces), and the judge."""
_OF_ONE_TRACE = ("trace", "answer", "choice", "state", "runtime")


class Ungraded(FlywheelError):
    """Raised by a reward that cannot be given here; its text becomes the null's reason."""


class Mark(NamedTuple):
    kind: Kind
    weight: float
    truth: bool
    """False = does not compare with the problem's answer, so it is given without one too."""
    of: Of = "model"
    """The spans of a step reward: model calls, tool calls, or all."""


class Method(NamedTuple):
    """A marked method: its name is the reward's, its arguments are what it is given."""

    name: str
    mark: Mark
    arguments: tuple[str, ...]
    script: Path | None = None
    """The grader that gives it, where no method does (`environments.graders`)."""

    @property
    def needs_truth(self) -> bool:
        return self.mark.truth and "problem" in self.arguments

    @property
    def live(self) -> bool:
        """True = only where the episode's own runtime still is."""
        return "runtime" in self.arguments

    @property
    def slow(self) -> bool:
        """True = asks a model or starts a sandbox: `Environment.long_limit_s` bounds it."""
        return not {"runtime", "sandbox", "judge"}.isdisjoint(self.arguments)


def _marker(kind: Kind, weight: Any, truth: bool, of: Of = "model") -> Callable[[Marked], Marked]:
    if callable(weight):
        raise ProjectError(f"write @{kind}() with parentheses above {weight.__name__}")
    if not (isinstance(weight, int | float) and math.isfinite(weight) and weight >= 0):
        raise ProjectError(f"the weight of a {kind} must be a number from 0 up, not {weight!r}")
    if of not in ("model", "tool", "any"):
        raise ProjectError(f'of={of!r} of a step_reward must be "model", "tool" or "any"')

    def mark(method: Marked) -> Marked:
        function: Any = getattr(method, "__func__", method)
        function._flywheel_mark = Mark(kind, float(weight), truth, of)
        return method

    return mark


def reward(weight: float = 1.0, *, truth: bool = True) -> Callable[[Marked], Marked]:
    """Marks a method that returns one number for a trace. `truth=False`: see `Mark`."""
    return _marker("reward", weight, truth)


def metric(method: Marked) -> Marked:
    """Marks a number that is looked at and never trained on."""
    return _marker("metric", 0.0, True)(method)


def group_reward(weight: float = 1.0, *, truth: bool = True) -> Callable[[Marked], Marked]:
    """Marks a method that takes `group` and returns a list parallel to it: numbers, None where a
    trace gets none. `environments.bonuses` has what such methods often return."""
    return _marker("group_reward", weight, truth)


def step_reward(
    weight: float = 1.0, *, of: Of = "model", truth: bool = True
) -> Callable[[Marked], Marked]:
    """Marks a method that takes `span` and returns one number for each model call, tool call, or
    any span (`of`). How it enters training: `environments.vector`."""
    return _marker("step_reward", weight, truth, of)


def stop(method: Marked) -> Marked:
    """Marks a condition that ends an episode of several steps."""
    return _marker("stop", 0.0, False)(method)


def setup(method: Marked) -> Marked:
    """Marks what is done before the first call: files into `runtime`, facts into `state`."""
    return _marker("setup", 0.0, False)(method)


def cleanup(method: Marked) -> Marked:
    """Marks what is done after an episode, however it ended."""
    return _marker("cleanup", 0.0, False)(method)


class Body(ABCMeta):
    """Reads a class body so that no marked method stands in it twice: the second would silently
    replace the first."""

    @classmethod
    def __prepare__(metacls, name: str, bases: tuple[type, ...], /, **_: Any) -> dict[str, object]:
        return _Once(name)


class _Once(dict[str, object]):
    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner

    def __setitem__(self, key: str, value: object) -> None:
        if any(mark_of(one) for one in (self.get(key), value)) and key in self:
            raise ProjectError(f"{self.owner} has two methods named {key!r}; rename one")
        super().__setitem__(key, value)


def mark_of(value: object) -> Mark | None:
    found = getattr(getattr(value, "__func__", value), "_flywheel_mark", None)
    return found if isinstance(found, Mark) else None


def method_of(owner: str, name: str, mark: Mark, function: Callable[..., Any]) -> Method:
    """The method as it will be called; `function` is bound.

    Raises:
        ProjectError: it names what cannot be given to it.
    """
    where = f"{owner}.{name}"
    arguments = tuple(_argument(where, one) for one in _parameters(where, function))
    given = tuple(argument for argument in arguments if argument)
    for kind, needed in (("group_reward", "group"), ("step_reward", "span")):
        if (mark.kind == kind) != (needed in given) and mark.kind != "stop":
            raise ProjectError(
                f"{where} is a {mark.kind}: a {kind} names {needed!r}, no other does"
            )
    wrong = [one for one in _OF_ONE_TRACE if one in given]
    if mark.kind == "group_reward" and wrong:
        raise ProjectError(f"{where} is for a whole group, and {wrong[0]!r} is of one trace")
    if {"runtime", "judge"} <= set(given):
        raise ProjectError(
            f"{where} names 'runtime' and 'judge': judges are asked in batches, after the episode. "
            "Keep what it needs in `state`, or name 'sandbox'"
        )
    waits = {"sandbox", "judge"} & set(given)
    if waits and not inspect.iscoroutinefunction(function):
        raise ProjectError(f"{where} names {min(waits)!r}, which is awaited: write `async def`")
    return Method(name, mark, given)


def _parameters(where: str, function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    raw = getattr(function, "__func__", None)
    first = next(iter(inspect.signature(raw).parameters), "") if raw else ""
    if raw and (not first or first in ARGUMENTS):
        raise ProjectError(f"{where} lacks `self` as its first argument")
    return inspect.signature(function).parameters.values()


def _argument(where: str, parameter: inspect.Parameter) -> str | None:
    """The argument's name; None = it has a value of its own and is left alone."""
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise ProjectError(f"{where} takes *{name}: it must name each thing that it needs")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise ProjectError(f"{where} takes {name!r} by position: arguments are given by name")
    if name in ARGUMENTS:
        return name
    if parameter.default is not parameter.empty:
        return None
    near = difflib.get_close_matches(name, ARGUMENTS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ARGUMENTS)}"
    raise ProjectError(f"{where} names {name!r}, never given; {hint}")


def weighted(owner: str, methods: Iterable[Method], weights: Mapping[str, float]) -> list[Method]:
    """The methods with the weights that the configuration gives them.

    Raises:
        ProjectError: a weight for what is no reward, or that is no number from 0 up.
    """
    found = {method.name: method for method in methods}
    for name, weight in weights.items():
        rewards = [key for key, one in found.items() if one.mark.kind.endswith("reward")]
        if name not in rewards:
            near = difflib.get_close_matches(name, rewards, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"rewards: {rewards or 'none'}"
            what = f"is a {found[name].mark.kind}" if name in found else "is no reward"
            raise ProjectError(f"environment {owner}: weights.{name}: {name!r} {what}; {hint}")
        if not (math.isfinite(weight) and weight >= 0):
            raise ProjectError(
                f"environment {owner}: weights.{name}: {weight} is not a number from 0 up"
            )
        method = found[name]
        found[name] = method._replace(mark=method.mark._replace(weight=weight))
    return list(found.values())
