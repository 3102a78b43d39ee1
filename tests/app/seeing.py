"""Pages as a test sees them, and a home with two turns in it that no model had to make.

Every record goes through the inbox, every file lies where a turn leaves it; text that comes from
outside is hostile throughout.
"""

import functools
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from streamlit.testing.v1 import AppTest

from flywheel.home import Home
from flywheel.ids import new_ulid
from flywheel.lineage import (
    Checkpoint,
    Decision,
    Deployment,
    Evaluation,
    Run,
    SliceResult,
)
from flywheel.records import (
    Choice,
    Feedback,
    Grade,
    Message,
    ModelCall,
    Problem,
    Span,
    Trace,
    Usage,
    say,
    trace_id,
)
from flywheel.rows import TrainingRow

HOSTILE = "<script>alert('x')</script> **bold** :red[no] $x$ [a](javascript:alert(1))"
_ESCAPE = re.compile(r"\\([^\w\s])")
DAY = 86_400 * 10**9
NOW = 1_795_900_000_000_000_000
PROJECT = "shop"


def page(home: Home, view: str, *, name: str = "ann", role: str = "promoter",
         folder: Path | None = None, project: str = PROJECT, **query: str) -> AppTest:  # fmt: skip
    """One page of the dashboard, run once."""

    def script(root: str, view: str, name: str, role: str, folder: str, project: str) -> None:
        import importlib
        from pathlib import Path

        from app.views import frame
        from flywheel.home import Home

        person = frame.Person(name, role)  # type: ignore[arg-type]
        place = Path(folder) if folder else None
        frame.show(frame.Shown(Home(Path(root)), project, place, person))
        importlib.import_module(f"app.views.{view}").view()

    shown = AppTest.from_function(
        script,
        default_timeout=240,
        kwargs={
            "root": str(home.root), "view": view, "name": name, "role": role,
            "folder": str(folder or ""), "project": project,
        },
    )  # fmt: skip
    for key, value in query.items():
        shown.query_params[key] = value
    return shown.run()


def words(shown: AppTest) -> str:
    """All that is to be read on it, Markdown without its escapes, tables as rows of cells."""
    assert not shown.exception, [one.message for one in shown.exception]
    kinds = ("title", "subheader", "markdown", "caption", "text", "code", "info", "warning",
             "error", "success")  # fmt: skip
    told = [_ESCAPE.sub(r"\1", str(one.value)) for kind in kinds for one in getattr(shown, kind)]
    told += [table.value.to_csv(index=False) for table in shown.dataframe]
    told += [one.proto.body for one in shown.get("html")]
    return "\n".join(told)


def decided(outcome: str, gate: str, reason: str, at: int, **more: Any) -> Decision:
    fields = {"by": "flywheel turn", **more}
    return Decision(id=new_ulid(), project=PROJECT, outcome=outcome, gate=gate, reason=reason,
                    at=at, **fields)  # type: ignore[arg-type]  # fmt: skip


def evaluated(run: str, champion: str, candidate: str, low: float, high: float) -> Evaluation:
    def part(name: str, problems: int) -> SliceResult:
        return SliceResult(name=name, problems=problems, champion=0.5, candidate=0.75,
                           difference=0.25, low=low, high=high)  # fmt: skip

    return Evaluation(
        id=f"evaluation-{run}", project=PROJECT, run_id=run, champion=champion,
        candidate=candidate, overall=part("overall", 4), slices=(part(HOSTILE, 2),),
        champion_tokens=9.0, candidate_tokens=7.5,
    )  # fmt: skip


def recorded(number: int, deployment: str | None, value: float | None, **more: Any) -> list[Any]:
    """One production trace and its grade."""
    at = NOW + number * DAY // 40
    call = ModelCall(
        input=(say("user", f"{HOSTILE} {number}"),), tools=(), deployment=deployment,
        choices=(Choice(message=say("assistant", HOSTILE), finish_reason="stop"),),
        usage=Usage(input_tokens=100, output_tokens=20), **more,
    )  # fmt: skip
    one = Trace(
        id=trace_id(PROJECT, "gateway", f"t{number}"), project=PROJECT, source="gateway",
        external_id=f"t{number}", origin="production",
        spans=(Span(id="call", kind="model", start=at, end=at + 10**8, call=call),),
    )  # fmt: skip
    reason = None if value is not None else HOSTILE
    return [one, Grade(trace_id=one.id, reward="right", value=value, reason=reason)]


def answered(run: str, side: str, number: int, value: float) -> list[Any]:
    """One side's answer to a held-out problem, and its grade."""
    problem = a_problem(number)
    call = ModelCall(
        input=problem.messages, tools=(),
        choices=(Choice(message=say("assistant", f"{side} {HOSTILE}"), finish_reason="stop"),),
        usage=Usage(reason="not recorded"),
    )  # fmt: skip
    name = f"{side}-{number}"
    one = Trace(
        id=trace_id(PROJECT, f"evaluation:{run}", name), project=PROJECT,
        source=f"evaluation:{run}", external_id=name, origin="evaluation", run_id=run,
        problem_id=problem.id, attempt=0, attributes={"side": side},
        spans=(Span(id="call", kind="model", start=NOW, end=NOW + 1, call=call),),
    )  # fmt: skip
    return [one, Grade(trace_id=one.id, reward="right", value=value, problem_id=problem.id)]


def a_problem(number: int) -> Problem:
    return Problem(environment=PROJECT, messages=(say("user", f"held out {number} {HOSTILE}"),),
                   answer=f"truth {number}", split="heldout", slice=HOSTILE)  # fmt: skip


def a_row(k: int, **changed: Any) -> TrainingRow:
    fields: dict[str, Any] = {
        "trace_id": f"trace-{k}", "span_id": "call", "problem_id": f"problem-{k}",
        "messages": (say("user", f"question {k} {HOSTILE}"),),
        "completion": Message(role="assistant", parts=say("x", f"answer {k}").parts),
        "conversation": f"c{k}", "user": f"u{k}", "text": f"wholly different words number {k}",
        "finish_reason": "stop", "reward": 1.0, "confirmed_by": "feedback",
        "fidelity": "trainable",
    }  # fmt: skip
    return TrainingRow(**(fields | changed))


def dataset(home: Home, run: str, rows: list[TrainingRow]) -> Any:
    """Curated and written as a turn does it, with a gate report that tries to run a script."""
    from storage.curate import RuleSpec, curate
    from storage.datasets import write_dataset

    rules = (RuleSpec(name="min_reward", params={"value": 1.0}),)
    made = write_dataset(home, PROJECT, curate(rows, rules, [], 0.7), parents=(run,), rules=rules)
    report = home.path(made.path) / "gate.html"
    report.write_text(f"<title>gate</title><p>{HOSTILE}\"'</p>")
    return msgspec.structs.replace(made, gate_passed=True, gate_report=home.relative(report))


def deployed(number: int) -> Deployment:
    adapter = {"adapter": f"runs/run-{number}/adapter", "checkpoint_id": f"checkpoint-{number}",
               "run_id": f"run-{number}", "registry_version": str(number)}  # fmt: skip
    return Deployment(name=f"{PROJECT}-v{number}", project=PROJECT, version=number,
                      base_model="base", **(adapter if number else {}))  # fmt: skip


def two_turns(home: Home, *, last: str = "waiting") -> None:
    """Turn 1 was promoted (shop-v1 serves), turn 2 came to `last` for shop-v2."""
    shutil.copytree(Path(_two_turns(last).name), home.root, dirs_exist_ok=True)


@functools.cache
def _two_turns(last: str) -> "tempfile.TemporaryDirectory[str]":
    """Made once, gone with this process."""
    place = tempfile.TemporaryDirectory(prefix="flywheel-two-turns-")
    make_two_turns(Home(Path(place.name)), last)
    return place


def make_two_turns(home: Home, last: str) -> None:
    from serving.routing import ProjectRoute, Routing, replace

    home.root.mkdir(parents=True, exist_ok=True)
    datasets = [
        dataset(home, "run-1", [a_row(k) for k in range(6)] + [a_row(9, reward=0.0)]),
        dataset(home, "run-2", [a_row(k) for k in range(3, 9)]),
    ]
    records: list[Any] = [deployed(0), deployed(1)]
    for number, data in enumerate(datasets, start=1):
        stored(home, [data])
        run, at = f"run-{number}", NOW + number * DAY
        config = {"train": {"rank": 8 * number}, "curate": {"rules": [{"name": "confirmed"}]}}
        records += [
            Run(id=run, project=PROJECT, algorithm="rejection", base_model="base",
                champion=f"shop-v{number - 1}", snapshot="s", dataset_id=data.id, config=config,
                seconds=12.5, mlflow_run_id=f"mlflow-{number}"),
            Checkpoint(id=f"checkpoint-{number}", run_id=run, kind="adapter",
                       path=f"runs/{run}/adapter", steps=4),
            evaluated(run, f"shop-v{number - 1}", f"shop-v{number}", 0.1, 0.4),
            decided("passed", "data", "6 rows", at, run_id=run),
            decided("passed", "learning", f"better {HOSTILE}", at + 1, run_id=run,
                    evaluation_id=f"evaluation-{run}", deployment=f"shop-v{number}"),
        ]  # fmt: skip
        left_by_a_turn(home, run)
    records += [
        decided("promoted", "serving", f"better {HOSTILE}", NOW + DAY + 2, run_id="run-1",
                evaluation_id="evaluation-run-1", deployment="shop-v1", replaced="shop-v0",
                evidence={"serving": {"largest": 1e-7, "note": HOSTILE}}),
        decided(last, "person" if last == "waiting" else "learning", f"because {HOSTILE}",
                NOW + 2 * DAY + 2, run_id="run-2", evaluation_id="evaluation-run-2",
                deployment="shop-v2"),
    ]  # fmt: skip
    for number in range(4):
        records += [a_problem(number), *answered("run-2", "champion", number, float(number < 2)),
                    *answered("run-2", "candidate", number, float(number < 3))]  # fmt: skip
    for k in range(30):
        records += recorded(k, "shop-v1", None if k % 10 == 9 else float(k % 2))
    records.append(Feedback(project=PROJECT, target=trace_id(PROJECT, "gateway", "t1"),
                            name="liked", value=False, kind="boolean", by="bob", at=1))  # fmt: skip
    stored(home, records)
    route = ProjectRoute(project=PROJECT, base_model="base", champion=deployed(1),
                         previous=deployed(0))  # fmt: skip
    replace(home, Routing(projects={PROJECT: route}))


def stored(home: Home, records: list[Any]) -> None:
    from storage.committer import commit
    from storage.inbox import Inbox

    Inbox(home).append(records)
    commit(home)


def left_by_a_turn(home: Home, run: str) -> None:
    folder = home.runs / run
    folder.mkdir(parents=True)
    steps = [{"step": k, "loss": 1 / k, "learning_rate": 1e-3, "grad_norm": 0.5} for k in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in steps) + '{"st')
    (folder / "steps.jsonl").write_text('{"step": "train_candidate", "seconds": 60.0}\n')
    (folder / "training.json").write_text('{"steps": 3}')
    (folder / "turn.md").write_text(f"# page of {run} {HOSTILE}")
