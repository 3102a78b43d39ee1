"""What `flywheel eval` does: what was asked for becomes a run, and a run words for people.

Options that a resumed run was begun with need not be given again; one that is given and differs is
refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flywheel.errors import EngineError, FlywheelError, Refused, UsageError
from flywheel.home import Home
from flywheel.project import Project
from flywheel.settings import Settings
from tasks.eval_plan import (
    Asked,
    Plan,
    chosen,
    configuration,
    differences,
    found,
    new_run,
    plan_of,
    problems_digest,
    run_named,
    runs,
    with_stored,
)

if TYPE_CHECKING:
    from environments.judges.contract import Judge
    from serving.interception import Served
    from tasks.eval import Playing, Setting

_KEPT = ("samples", "temperature", "max_tokens", "split", "limit")
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
    if given["resume"]:
        folder = run_named(home, given["resume"], given["environment"] or None)
        given = _as_before(given, plan_of(folder))
    if not given["model"]:
        raise UsageError("name the model: --model with a URL, a deployment's name, or base")
    with contextlib.ExitStack() as stack:
        asked, playing = stack.enter_context(_asked(home, given))
        served = stack.enter_context(_served(home, settings, given, asked.project))
        plan = _plan(given, asked, served)
        folder = _folder(home, folder, plan)
        setting = _setting(home, folder, plan, asked, given)
        try:
            return evaluate(setting, served, playing(setting) if playing else None)
        except KeyboardInterrupt:
            told = f"stopped; `flywheel eval --resume {folder.name}` goes on"
            raise Stopped(told) from None
        except EngineError as error:
            told = f"{error}; `flywheel eval --resume {folder.name}` tries again"
            raise EngineError(told) from error


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
    from tasks.eval_model import at_url, deployed, is_url, key_of

    model = given["model"]
    if is_url(model):
        tokens = bool(given["tokens"])
        yield at_url(model, given["model_name"], key_of(given["key_env"]), tokens=tokens)
        return
    if project is None:
        raise UsageError(
            f"--model {model!r} is no URL, and only a project has deployments: --project FOLDER"
        )
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
        pass_mark=given["pass_mark"],
        price=Price(given["price_input"], given["price_output"]),
        judge=_judge(home, asked.project),
        rejects=asked.rejects,
    )


def _judge(home: Home, project: Project | None) -> "Judge | None":
    from tasks.judges import judge_of

    return judge_of(project, home) if project else None


# --- what people see


def listed(home: Home) -> list[dict[str, Any]]:
    """The evaluations of a home, the newest first."""
    rows = []
    for folder in runs(home):
        plan = plan_of(folder)
        summary = _summary(folder)
        mean = (summary.get("reward") or {}).get("mean")
        rows.append(
            {
                "run": folder.name,
                "environment": plan.environment,
                "model": plan.served or plan.model,
                "state": "done" if (folder / "done").exists() else "not done",
                "reward": "unknown" if mean is None else f"{mean:.3f}",
                "report": str(folder / "report.html"),
            }
        )
    return rows


def _summary(folder: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode((folder / "summary.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def shown(summary: Mapping[str, Any]) -> str:
    """A run in some lines of text."""
    episodes, reward, tokens = summary["episodes"], summary["reward"], summary["tokens"]
    lines = [
        f"{summary['environment']} by {summary['model']}",
        f"  reward      {_number(reward['mean'])}  (95% {_between(reward)}; "
        f"{reward['problems']} problems, {episodes['graded']} episodes graded)",
    ]
    for one in summary["pass"]:
        lines.append(f"  pass@{one['k']:<7}{_number(one['any'])}     pass^{one['k']} "
                     f"{_number(one['all'])}")  # fmt: skip
    if len(summary["slices"]) > 1:
        lines += [f"  {one['name'][:24]:<24} {_number(one['mean'])}  (95% {_between(one)})"
                  for one in summary["slices"]]  # fmt: skip
    lines += [f"  {one['name'][:24]:<24} {_number(one['mean'])}  "
              f"({'weight ' + _number(one['weight']) if one['weight'] else 'metric'})"
              for one in summary["rewards"]]  # fmt: skip
    cost = summary["cost"]["usd"]
    lines += [
        f"  tokens      {_count(tokens['input'])} read, {_count(tokens['output'])} answered",
        f"  cost        {summary['cost']['reason'] if cost is None else f'${cost:.4f}'}",
        f"  ended       {', '.join(f'{name}: {n}' for name, n in summary['ended'].items())}",
    ]
    for count, what in (
        (episodes["not_graded"], "episodes could not be graded"),
        (summary["unreadable_problems"], "rows of the task set could not be read"),
    ):
        lines += [f"  {count} {what}"] if count else []
    if episodes["infrastructure"]:
        lines.append(f"  {episodes['infrastructure']} episodes failed for infrastructure: "
                     f"`flywheel eval --resume {summary['run']}` makes them again")  # fmt: skip
    return "\n".join([*lines, f"  report      {summary['report']}"])


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _between(found: Mapping[str, Any]) -> str:
    return "unknown" if found["low"] is None else f"{found['low']:.3f} to {found['high']:.3f}"
