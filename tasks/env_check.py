"""Whether an environment says what it means: its gold answers earn full marks, wrong ones do not.

Enter an environment. Leave findings, each with what was found. Invariant: rewards are asked in two
fresh processes with different hash seeds, so what differs between them depends on more than the
answer; nothing that could not be looked at counts as right.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flywheel.errors import ProjectError
from flywheel.progress import report
from flywheel.records import Problem, Record
from tasks.env_words import SHOWN, counts, differ, short, worst

if TYPE_CHECKING:
    from environments.define import Environment
    from environments.tasksets.contract import Read
    from tasks.env_scores import Scored

LOW = 0.5
"""The most that a wrong answer may earn."""
FULL = 1.0 - 1e-9
_LIMIT_S = 1800.0


class Finding(Record, frozen=True, kw_only=True, omit_defaults=False):
    check: str
    ok: bool | None
    """None = it is not known, or does not apply; `found` says why."""
    found: str


class Checked(NamedTuple):
    name: str
    findings: list[Finding]
    gold: int
    """Gold answers that were graded."""

    @property
    def passed(self) -> bool:
        return all(one.ok is not False for one in self.findings)


def check(path: str, base: Path, config: Mapping[str, Any], *, limit: int | None = 40) -> Checked:
    """
    Args:
        path: as `load_environment` takes it, relative to `base`.
        limit: of problems whose answers are graded, spread over all slices; None = all.

    Raises:
        ProjectError: it does not load.
    """
    from environments.load import load_environment, problems_of

    environment = load_environment(path, base, config)
    read = problems_of(environment)
    problems = list(read.problems)
    findings = [_readable(problems, read), _sides(environment, problems)]
    findings.append(_leaks(environment, problems))
    some = spread(problems, limit)
    made = _twice(path, base, config, some) if some else []
    if made:
        first = made[0]
        findings += [
            _gold(first, some),
            _wrong(first),
            _told_apart(first),
            _same(*made),
            *_by_harness(first),
        ]
    gold = len({one.problem for one in made[0] if one.which == "gold"}) if made else 0
    return Checked(environment.name, findings, gold)


def spread(problems: Sequence[Problem], limit: int | None) -> list[Problem]:
    """Up to `limit` of them, from every slice in turn, the same ones each time."""
    by_slice: dict[str, list[Problem]] = {}
    for one in sorted(problems, key=lambda one: one.id):
        by_slice.setdefault(one.slice, []).append(one)
    depth = max((len(found) for found in by_slice.values()), default=0)
    turns = (found[at] for at in range(depth) for found in by_slice.values() if at < len(found))
    return list(turns)[:limit]


# --- the problems


def _readable(problems: Sequence[Problem], read: "Read") -> Finding:
    left_out = {name: count for name, count in read.left_out.items() if name != "not readable"}
    said = f"{len(problems)} problems" + (f", left out: {counts(left_out)}" if left_out else "")
    if read.rejects:
        some = "; ".join(str(one) for one in read.rejects[:SHOWN])
        return _finding("problems load", False, f"{said}; {len(read.rejects)} unreadable: {some}")
    if not problems:
        return _finding("problems load", False, "there are none: `tasks` names no task set")
    return _finding("problems load", True, said)


def _sides(environment: "Environment", problems: Sequence[Problem]) -> Finding:
    sides = Counter(one.split for one in problems)
    said = f"{sides['train']} to train on, {sides['heldout']} held out"
    only = environment.tasks is not None and environment.tasks.heldout_share == 1
    if only:
        ok = not sides["train"] and bool(sides["heldout"])
        return _finding("both sides", ok, f"{said} (for evaluation only)")
    return _finding("both sides", bool(sides["train"] and sides["heldout"]), said)


def _leaks(environment: "Environment", problems: Sequence[Problem]) -> Finding:
    from environments.near import NearIndex

    asked = environment.tasks.near_duplicate if environment.tasks else None
    index = NearIndex(asked or 1.0)
    for one in problems:
        if one.split == "heldout":
            index.add(one.text)
    leaks = [one for one in problems if one.split == "train" and one.text and index.near(one.text)]
    how = f"nearer than {asked:g}" if asked else "of equal words (the set asks for no more)"
    if leaks:
        told = "; ".join(short(one.text) for one in leaks[:SHOWN])
        return _finding("no leaks", False, f"{len(leaks)} training problems {how}: {told}")
    return _finding("no leaks", True, f"no training problem is a held-out one, {how}")


# --- the rewards


def _gold(made: "Sequence[Scored]", asked: Sequence[Problem]) -> Finding:
    gold = [one for one in made if one.which == "gold"]
    full = {one.problem for one in gold if one.score is not None and one.score >= FULL}
    known = {one.problem for one in gold}
    short = [one for one in gold if one.problem not in full]
    unknown = len(asked) - len(known)
    said = f"{len(full)} of {len(known)} earn full marks" + (
        f"; {unknown} problems have no known gold answer" if unknown else ""
    )
    if not known:
        return _finding("gold answers", False, "none is known: `gold` gives one for a problem")
    return _finding("gold answers", not short, f"{said}{worst(short)}")


def _wrong(made: "Sequence[Scored]") -> Finding:
    wrong = [one for one in made if one.which == "wrong"]
    if not wrong:
        said = "the environment names none: `wrong` gives near misses of a problem"
        return _finding("wrong answers", None, said)
    unknown = [one for one in wrong if one.score is None]
    high = [one for one in wrong if one.score is not None and one.score > LOW]
    said = f"{len(wrong) - len(high) - len(unknown)} of {len(wrong)} earn {LOW:g} or less"
    return _finding("wrong answers", not high and not unknown, said + worst([*high, *unknown]))


def _told_apart(made: "Sequence[Scored]") -> Finding:
    """Gold of another problem that has another truth: now and then it may be right too."""
    asked = [one for one in made if one.which == "swapped"]
    swapped = [one for one in asked if one.score is not None]
    if not swapped:
        said = "none of them could be graded" if asked else "no two problems with different answers"
        return _finding("answers told apart", None, said)
    full = [one for one in swapped if one.score is not None and one.score >= FULL]
    said = f"{len(full)} of {len(swapped)} answers to another problem earn full marks"
    return _finding("answers told apart", 2 * len(full) <= len(swapped), said)


def _same(first: "Sequence[Scored]", second: "Sequence[Scored]") -> Finding:
    def by(found: "Sequence[Scored]") -> dict[Any, Any]:
        return {(one.problem, one.which, one.number, one.route): one.rewards for one in found}

    one, other = by(first), by(second)
    apart = [key for key in one | other if one.get(key) != other.get(key)]
    if not any(value is not None for rewards in one.values() for value in rewards.values()):
        return _finding("deterministic", None, "no answer could be graded")
    if not apart:
        said = f"{len(one)} answers graded alike in two processes of different hash seeds"
        return _finding("deterministic", True, said)
    told = "; ".join(
        f"{key[1]} of {key[0][:8]}: {differ(one.get(key), other.get(key))}" for key in apart[:SHOWN]
    )
    return _finding("deterministic", False, f"{len(apart)} answers graded otherwise: {told}")


def _by_harness(made: "Sequence[Scored]") -> Iterable[Finding]:
    """Only where both routes were gone: a harness that spoils what a trace made by hand earns may
    mean it; one in which episodes break does not hold."""
    by_hand = {one.problem for one in made if one.route == "trace" and one.which == "gold"}
    led = [one for one in made if one.route == "harness" and one.problem in by_hand]
    if led:
        short = [one for one in led if one.score is None or one.score < FULL]
        said = f"{len(led) - len(short)} of {len(led)} gold answers earn it by way of the harness"
        broken = any(one.score is None for one in short)
        ok = False if broken else None if short else True
        yield _finding("gold by the harness", ok, said + worst(short))


def _twice(
    path: str, base: Path, config: Mapping[str, Any], problems: Sequence[Problem]
) -> "list[list[Scored]]":
    from tasks.env_scores import Scored

    with tempfile.TemporaryDirectory(prefix="flywheel-check-") as place:
        folder, made = Path(place), []
        (folder / "problems").write_bytes(msgspec.json.encode([one.id for one in problems]))
        for number, seed in enumerate(("1", "2")):
            report("grading gold and wrong answers", number, 2)
            done = subprocess.run(
                [sys.executable, "-m", "tasks.env_scores", path, str(folder / "problems"),
                 str(folder / seed), "--base", str(base.resolve()),
                 "--config", msgspec.json.encode(config).decode()],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True, text=True, timeout=_LIMIT_S,
            )  # fmt: skip
            if done.returncode != 0:
                last = done.stderr.strip().splitlines()[-12:]
                raise ProjectError(f"{path} cannot be graded: " + "\n".join(last))
            made.append(msgspec.json.decode((folder / seed).read_bytes(), type=list[Scored]))
        report("grading gold and wrong answers", 2, 2)
    return made


def _finding(check: str, ok: bool | None, found: str) -> Finding:
    return Finding(check=check, ok=ok, found=found)
