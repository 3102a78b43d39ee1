"""What `flywheel eval` does: what was asked for becomes a run, and a run words for people.

Options that a resumed run was begun with need not be given again; one that is given and differs is
refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import EngineError, FlywheelError, Full, Refused, UsageError
from flywheel.home import Home
from flywheel.project import Project, load_project
from flywheel.settings import Settings
from tasks.eval_defaults import project_here, sampled_as
from tasks.eval_plan import (
    FREE,
    Asked,
    Plan,
    absolute,
    chosen,
    configuration,
    differences,
    found,
    new_run,
    plan_of,
    problems_digest,
    run_named,
    with_stored,
)

if TYPE_CHECKING:
    from environments.judges.contract import Judge
    from serving.interception import Served
    from tasks.eval import Playing, Setting

_KEPT = ("samples", "temperature", "max_tokens", "split", "limit", *FREE)
"""Options that a plan keeps under their own names."""
VERIFIERS = "verifiers:"


class Stopped(FlywheelError):
    """Ctrl-C."""

    exit_code = 130


def run(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """
    Raises:
        UsageError: something does not fit.
        Refused: the run to be resumed was begun with another configuration.
        EngineError: the model or the machine failed from beginning to end.
        Stopped: by Ctrl-C; what ended before is kept.
    """
    from tasks.eval import evaluate

    home, folder = settings.at(), None
    given = {**given, "environment": absolute(given["environment"])}
    if given["resume"]:
        folder = run_named(home, given["resume"], given["environment"] or None)
        given = _as_before(given, plan_of(folder))
    if not given["model"]:
        raise UsageError(
            "name the model: --model with a URL, a deployment's name (NAME-vN), or base"
        )
    if folder is None and not given["project"]:
        given["project"] = project_here(home, given)
    with contextlib.ExitStack() as stack:
        asked, playing = stack.enter_context(_asked(home, given))
        if asked.project is None and given["project"]:
            asked = asked._replace(project=load_project(given["project"]))
        given = sampled_as(given, asked.project)
        chosen(asked, given["split"] or "heldout", given["limit"])  # before a server is started
        served = stack.enter_context(_served(home, settings, given, asked.project))
        plan = _plan(given, asked, served)
        folder = _folder(home, folder, plan)
        setting = _setting(home, folder, plan, asked, given)
        try:
            return evaluate(setting, served, playing(setting) if playing else None)
        except KeyboardInterrupt:
            told = f"stopped; `flywheel eval --resume {folder.name}` goes on"
            raise Stopped(told) from None
        except (EngineError, Full) as error:
            told = f"{error}; `flywheel eval --resume {folder.name}` tries again"
            raise type(error)(told) from error


def _as_before(given: dict[str, Any], before: Plan) -> dict[str, Any]:
    """What was not given again is what it was."""
    filled = dict(given)
    filled["environment"] = given["environment"] or before.environment
    filled["model"] = given["model"] or before.model
    filled["model_name"] = given["model_name"] or before.served
    filled["config"] = configuration(given["pairs"]) if given["pairs"] else before.config
    filled["project"] = given["project"] or (Path(before.folder) if before.folder else None)
    for name in _KEPT:
        filled[name] = getattr(before, name) if given[name] is None else given[name]
    return filled


@contextlib.contextmanager
def _asked(
    home: Home, given: Mapping[str, Any]
) -> "Iterator[tuple[Asked, Callable[[Setting], Playing] | None]]":
    """The environment with its problems, and what plays it where it does not itself."""
    path = given["environment"]
    config = given.get("config", configuration(given["pairs"]))
    if path.startswith(VERIFIERS):
        from tasks.eval_verifiers import foreign

        with foreign(path.removeprefix(VERIFIERS), config, given["limit"]) as one:
            yield one
        return
    yield with_stored(home, found(path, config, given["project"])), None


@contextlib.contextmanager
def _served(
    home: Home, settings: Settings, given: Mapping[str, Any], project: Project | None
) -> "Iterator[Served]":
    from tasks.eval_base import base_model, served_base
    from tasks.eval_model import at_url, deployed, is_url, key_of

    model = given["model"]
    if is_url(model):
        tokens = bool(given["tokens"])
        yield at_url(model, given["model_name"], key_of(given["key_env"]), tokens=tokens)
        return
    if project is None:
        base = base_model(model, settings.models)
        if base is None:
            raise UsageError(
                f"--model {model!r} is no URL and no base model in {settings.models} (`make model` "
                "brings the demo's), and only a project has deployments (NAME-vN, and base, which "
                "all of them stand on): --project FOLDER"
            )
        with served_base(base, home, settings) as served:
            yield served
        return
    with deployed(model, home, project, settings) as served:
        yield served


def _plan(given: Mapping[str, Any], asked: Asked, served: "Served") -> Plan:
    set_ = {name: given[name] for name in _KEPT if given[name] is not None}
    plan = Plan(
        environment=given["environment"],
        name=asked.name,
        digest=asked.digest,
        config=given.get("config", configuration(given["pairs"])),
        model=given["model"],
        served=served.deployment or served.model,
        project=asked.project.name if asked.project else asked.name,
        folder=str(asked.project.folder) if asked.project else "",
        **set_,
    )
    problems = chosen(asked, plan.split, plan.limit)
    return msgspec.structs.replace(plan, problems=problems_digest(problems))


def _folder(home: Home, before: Path | None, plan: Plan) -> Path:
    """The run's folder: a new one, or the one to go on with.

    Raises:
        Refused: what is asked for is not what it was begun with.
    """
    if before is None:
        return new_run(home, plan)
    changed = differences(plan_of(before), plan)
    if changed:
        raise Refused(
            f"evaluation {before.name} cannot go on, its answers would not compare: "
            f"{'; '.join(changed)}. Start a new one without --resume"
        )
    return before


def _setting(
    home: Home, folder: Path, plan: Plan, asked: Asked, given: Mapping[str, Any]
) -> "Setting":
    from tasks.eval import Setting
    from tasks.eval_summary import Price

    return Setting(
        home=home,
        folder=folder,
        plan=plan,
        environment=asked.environment,
        problems=chosen(asked, plan.split, plan.limit),
        concurrency=given["concurrency"],
        pass_mark=plan.pass_mark,
        price=Price(plan.price_input, plan.price_output),
        judge=_judge(home, asked.project),
        rejects=asked.rejects,
        unreadable=asked.unreadable,
        stored=asked.stored,
    )


def _judge(home: Home, project: Project | None) -> "Judge | None":
    from tasks.judges import judge_of

    return judge_of(project, home) if project else None
