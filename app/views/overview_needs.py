"""What needs a person: everything of a home and a project that waits or is broken, and what to do.

Enters what the other data modules found; leaves `Need`s, what is broken first. Their words may hold
text from traces and graders: pages show them plain.
"""

import json
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Literal

from app.actions import Action
from app.views.ledger_data import Ledger, Turn, outcome_of
from app.views.overview_data import Server, Serving, out_of_line, waiting_candidates
from app.views.progress_data import Progress
from app.views.words import many
from flywheel.home import Home
from flywheel.lineage import Decision, Mark
from flywheel.records import Record
from storage.glance import Glance

_LOOKED_AT = 200
"""Entries of the quarantine whose reason is read; all are counted."""
Kind = Literal["broken", "decide", "look"]
ORDER: tuple[Kind, ...] = ("broken", "decide", "look")
ADVICE = {
    "data": "Its data is not fit to learn from: the dataset's gate report says what failed.",
    "leakage": "Training rows touch held-out problems: the dataset's dropped rows say which.",
    "learning": "Compare the answers old against new, and correct what both get wrong: the next "
    "turn learns from what reviewers save.",
    "serving": "What the engine serves is not what was trained: look at each part.",
    "person": "Somebody took this candidate back; new traces or feedback give another one.",
}
"""Gate -> what to do after its refusal."""
_VIEW = {"data": "datasets", "leakage": "datasets", "learning": "runs", "person": "deployments"}


class Need(Record, frozen=True, kw_only=False):
    """Something that waits for a person."""

    kind: Kind
    """broken = something does not work; decide = a decision is asked for; look = worth a look."""
    what: str
    to_do: str
    command: str = ""
    """What to type, where that is what to do."""
    view: str = ""
    """The page where it is done."""


def needs(
    home: Home,
    project: str,
    folder: Path | None,
    *,
    known: Ledger,
    turns: list[Turn],
    now: Serving | None,
    up: Server | None,
    turn: Progress | None,
    glance: Glance | None,
    acted: list[Action],
    waits: dict[str, int],
) -> list[Need]:
    """
    Args:
        waits: what no commit has taken in yet, as `storage.overview.waiting` says it.
    """
    named = shlex.quote(str(folder)) if folder else "FOLDER"
    found = [
        *_of_server(project, named, now, up),
        *_of_turn(turn),
        *_of_candidates(waiting_candidates(known, now.deployment if now else None)),
        *_of_last_turn(turns),
        *_of_warnings(known, turns),
        *_of_marks(known, now.deployment if now else None, named),
        *_of_traces(glance),
        *_of_mlflow(home, project),
        *_of_quarantine(home),
        *_of_inbox(waits),
        *_of_actions(acted, project),
    ]
    return sorted(found, key=lambda one: ORDER.index(one.kind))


def quarantined(home: Home) -> tuple[int, list[tuple[str, int]]]:
    """How much lies in quarantine, and why: the most frequent reasons of what was looked at."""
    try:
        with os.scandir(home.quarantine) as found:
            names = sorted(one.name for one in found if not one.name.endswith(".why"))
    except FileNotFoundError:
        return 0, []
    reasons: Counter[str] = Counter()
    for name in names[-_LOOKED_AT:]:
        try:
            said = json.loads((home.quarantine / f"{name}.why").read_bytes())
            reasons[str(said["reason"])[:200]] += 1
        except (OSError, ValueError, KeyError, TypeError):
            reasons["its reason cannot be read"] += 1
    return len(names), reasons.most_common(3)


def _of_server(project: str, named: str, now: Serving | None, up: Server | None) -> list[Need]:
    serve = f"flywheel serve {named}"
    if up is None and now is None:
        return []
    if up is None:
        return [Need("broken", "No server runs: requests are not answered.", "Start it:", serve)]
    if project not in up.projects:
        what = f"The server at {up.url} does not serve {project}."
        return [Need("look", what, "Stop it and start this one:", serve)]
    why = f": {up.reason}" if up.reason else ""
    if up.state != "ready":
        what = f"The server's engine is not ready ({up.state}){why}."
        return [Need("broken", what, "What is wrong with it:", "flywheel doctor")]
    if why:
        what = f"The server does not record{why}."
        return [Need("broken", what, "What is not recorded is not learned from: mend it.")]
    return []


def _of_turn(turn: Progress | None) -> list[Need]:
    if turn is None or turn.alive is not False:
        return []
    at = f" while it was to {turn.now.words}" if turn.now else ""
    again = f"flywheel turn {shlex.quote(turn.folder)}"
    return [Need("decide", f"A turn was stopped{at}.", "It goes on where it was:", again)]


def _of_candidates(waiting: list[Decision]) -> list[Need]:
    to_do = "Look at its evidence and promote it, or leave it."
    return [
        Need("decide", f"{one.deployment} waits for a person's yes: {one.reason}", to_do, "",
             "deployments")
        for one in waiting
    ]  # fmt: skip


def _of_last_turn(turns: list[Turn]) -> list[Need]:
    if not turns or outcome_of(turns[-1]) != "refused":
        return []
    called, last = turns[-1].name.partition(" · ")[0].capitalize(), turns[-1].last
    what = f"{called} was refused by the {last.gate} gate: {last.reason}"
    command = "flywheel doctor" if last.gate == "serving" else ""
    to_do = ADVICE.get(last.gate, "Its page below says more.")
    return [Need("look", what, to_do, command, _VIEW.get(last.gate, ""))]


def _of_warnings(known: Ledger, turns: list[Turn]) -> list[Need]:
    """What the data gate let pass, and warned of, in the last turn."""
    run = turns[-1].run_id if turns else None
    return [
        Need("look", f"The {one.gate} gate warns: {one.reason}",
             "The dataset's gate report shows it; [data_gate] says what blocks.", "", "datasets")
        for one in known.decisions
        if run is not None and one.run_id == run and one.outcome == "warned"
    ]  # fmt: skip


def _of_marks(known: Ledger, serves: str | None, named: str) -> list[Need]:
    """What has changed under the model that serves, or else under the newest dataset; where a
    retrain would be from the same rows there is nothing to do."""
    newest = known.datasets[-1].id if known.datasets else None
    by_cause: dict[str, Mark] = {}
    for one in known.marks:
        counts = one.target in (serves, newest) and not one.settled and one.retrain is not False
        if counts and (one.cause not in by_cause or one.target == serves):
            by_cause[one.cause] = one
    found = []
    for mark in by_cause.values():
        of = f"{serves} stands" if mark.target == serves else "The newest dataset stands"
        what = f"{of} on what has changed since ({mark.cause}): {mark.reason}"
        kind: Kind = "decide" if mark.cause == "erased" else "look"
        to_do = "The next turn learns from it as it is now:"
        found.append(Need(kind, what, to_do, f"flywheel turn {named}", "datasets"))
    return found


def _of_traces(glance: Glance | None) -> list[Need]:
    found = []
    if glance and glance.disagreeing:
        of = many(glance.disagreeing, "trace")
        what = f"What people said and the grade are at odds in {of} that no reviewer has judged."
        found.append(Need("look", what, "Judge them.", "", "review"))
    if glance and (glance.ungiven or glance.unseen):
        why = []
        if glance.ungiven:
            why.append(f"{many(glance.ungiven, 'trace')} could not be graded")
        if glance.unseen:
            why.append(f"{many(glance.unseen, 'trace')} no grader has looked at")
        to_do = "Say what would have been right; the next turn grades what it can."
        found.append(Need("look", f"{' and '.join(why)}.", to_do, "", "review"))
    return found


def _of_mlflow(home: Home, project: str) -> list[Need]:
    off = out_of_line(home, project)
    if not off:
        return []
    what = f"MLflow is out of line with what serves: {off}."
    to_do = "The server's next start puts it back; this says what else may be wrong:"
    return [Need("broken", what, to_do, "flywheel doctor")]


def _of_quarantine(home: Home) -> list[Need]:
    count, reasons = quarantined(home)
    if not count:
        return []
    why = "; ".join(f"{reason} ({times})" for reason, times in reasons)
    what = f"{many(count, 'row')} could not be understood: {why}"
    return [Need("look", what, f"They lie in {home.quarantine}; import them again once mended.")]


def _of_inbox(waits: dict[str, int]) -> list[Need]:
    if not any(waits.values()):
        return []
    journal = f"{waits['journal_bytes'] / 1024:,.0f} KiB of journal"
    what = f"{many(waits['segments'], 'segment')} and {journal} wait to be taken in."
    return [Need("look", what, "The next turn does it, or now:", "flywheel ingest")]


def _of_actions(acted: list[Action], project: str) -> list[Need]:
    to_do = "What it had done stands; do it again if it is still wanted."
    return [
        Need("decide", f"{one.begun.what}, begun by {one.begun.by}, was interrupted.", to_do, "",
             "deployments")
        for one in acted
        if one.state == "lost" and one.begun.project in ("", project)
    ]  # fmt: skip
