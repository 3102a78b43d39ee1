"""A turn under way: which step it is at and how far, read from the files that its steps leave.

Enters a home and a project; leaves the steps with counts. Nothing is locked and no database is
opened, so a page may ask every two seconds. Whether its process lives is asked of the kernel.
"""

import contextlib
import json
import math
from pathlib import Path
from typing import Any, Literal

from app.views.ledger_data import Turn, outcome_of
from app.views.words import many
from flywheel.errors import FlywheelError
from flywheel.home import Home
from flywheel.records import Record

State = Literal["done", "now", "ahead"]
STEPS = {
    "ingest": "take in what came",
    "grade": "grade recorded traces",
    "problems": "find problems",
    "rollouts": "sample and grade answers",
    "dataset": "choose what to learn from",
    "training": "train",
    "evaluation": "compare on held-out problems",
    "promotion": "check and promote",
}
"""Step -> what a person calls it; its note in the run's folder says that it is done."""


class Step(Record, frozen=True, kw_only=True):
    name: str
    words: str
    state: State
    done: int | None = None
    total: int | None = None
    """None = not known yet."""
    note: str = ""


class Progress(Record, frozen=True, kw_only=True):
    run_id: str
    folder: str
    """The project's."""
    champion: str
    opened: int
    alive: bool | None
    """False = it was stopped and waits to be resumed; None = this system does not say."""
    steps: tuple[Step, ...]

    @property
    def now(self) -> Step | None:
        return next((one for one in self.steps if one.state == "now"), None)


def progress(home: Home, project: str) -> Progress | None:
    """None = no turn of the project is open."""
    from tasks.turns import turn_under_way

    turn = turn_under_way(home, project)
    if turn is None:
        return None
    opened = home.turns / f"{project}.json"
    with contextlib.suppress(FileNotFoundError):
        return Progress(
            run_id=turn.run_id,
            folder=turn.folder,
            champion=turn.champion,
            opened=opened.stat().st_mtime_ns,
            alive=locked(home.locks / f"turn-{project}.lock"),
            steps=_steps(home.runs / turn.run_id, Path(turn.folder)),
        )
    return None


def standing(turn: Turn, now: Progress | None) -> tuple[str, str]:
    """What a turn came to, and how: a gate that let it through has not ended it."""
    outcome, gate = outcome_of(turn), turn.last.gate
    if outcome != "unfinished":
        return outcome.replace("_", " "), f"by the {gate} gate"
    if now is None or now.run_id != turn.run_id:
        return "unfinished", f"it passed the {gate} gate last"
    state = "stopped" if now.alive is False else "under way"
    return state, now.now.name if now.now else f"it passed the {gate} gate"


def locked(path: Path) -> bool | None:
    """Whether a process holds `path` as a lock, asked without trying it: somebody who takes it at
    that moment must not be told that it is taken. None = not to be known here."""
    try:
        inode = path.stat().st_ino
        held = Path("/proc/locks").read_text()
    except FileNotFoundError:
        return False if Path("/proc/locks").exists() else None
    except OSError:
        return None
    lines = [line.split() for line in held.splitlines()]
    return any("->" not in line and line[5].rpartition(":")[2] == str(inode) for line in lines)


def _steps(folder: Path, project_folder: Path) -> tuple[Step, ...]:
    """Under way is the step after the last that ended: `flywheel train` grades nothing, so that one
    before it may be undone still."""
    said = {name: note_of(folder, name) for name in STEPS}
    names = list(STEPS)
    under_way = 1 + max((at for at, name in enumerate(names) if said[name] is not None), default=-1)
    made = []
    for at, (name, words) in enumerate(STEPS.items()):
        note = said[name]
        if note is not None:
            made.append(Step(name=name, words=words, state="done", note=_told(name, note)))
        elif at != under_way:
            made.append(Step(name=name, words=words, state="ahead"))
        else:
            done, total, word = _counted(name, folder, project_folder, said)
            made.append(
                Step(name=name, words=words, state="now", done=done, total=total, note=word)
            )
    return tuple(made)


def note_of(folder: Path, name: str) -> dict[str, Any] | None:
    """What a step left beside its run; None = it did not end, or its note cannot be read."""
    try:
        found = json.loads((folder / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; one half written is left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(value)
    return found


def seconds_by_step(folder: Path) -> dict[str, float]:
    spent: dict[str, float] = {}
    for line in lines_of(folder / "steps.jsonl"):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            spent[str(line["step"])] = spent.get(str(line["step"]), 0.0) + float(line["seconds"])
    return spent


def _counted(
    name: str, folder: Path, project_folder: Path, said: dict[str, Any]
) -> tuple[int | None, int | None, str]:
    """How far the step under way is: done, of how many, and a word."""
    from flywheel.project import load_project
    from tasks.rl_problems import is_online

    try:
        project = load_project(project_folder)
    except FlywheelError:
        return None, None, ""
    ran = [line.get("step") for line in lines_of(folder / "steps.jsonl")]
    problems, chunk = said["problems"] or {}, project.rollouts.chunk
    if name == "rollouts":
        total = math.ceil(len(problems.get("train", ())) / chunk)
        return min(ran.count("sample_chunk"), total), total, "chunks of problems"
    if name == "training":
        steps = lines_of(folder / "metrics.jsonl")
        rows = (said["dataset"] or {}).get("rows")
        whole = project.train.epochs * math.ceil(rows / project.train.batch) if rows else None
        whole = project.train.rl.steps if is_online(project) else whole
        loss = steps[-1].get("loss") if steps else None
        note = "optimizer steps" + (f", loss {loss:.3f}" if isinstance(loss, float) else "")
        return (steps[-1].get("step") if steps else 0), whole, note
    if name == "evaluation":
        total = 2 * math.ceil(len(problems.get("heldout", ())) / chunk)
        return min(ran.count("answer_heldout"), total), total, "chunks, both models"
    return None, None, ""


def _told(name: str, note: dict[str, Any]) -> str:
    """What a step that is done found, in a few words."""
    try:
        return {
            "ingest": lambda: (
                f"{many(note['traces'], 'trace')} came" if note["traces"] else "nothing new waited"
            ),
            "grade": lambda: f"{note['graded']} graded, {note['not_gradable']} cannot be",
            "problems": lambda: (
                f"{len(note['train'])} to train on, {len(note['heldout'])} held out"
            ),
            "rollouts": lambda: (
                "sampled as it trains"
                if "problems" in note
                else f"{note['rollouts']} answers, {note['graded']} graded"
            ),
            "dataset": lambda: f"{note['rows']} rows kept",
            "training": lambda: f"{note['steps']} steps",
            "evaluation": lambda: str(note["reason"]),
            "promotion": lambda: str(note["reason"]),
        }[name]()
    except (KeyError, TypeError):
        return ""
