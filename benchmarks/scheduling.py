"""Rules of scheduling beside each other: our orchestrator, in virtual time, and four others' rules.

Rollouts are heavy-tailed (lognormal, median 300 s, sigma 1.2, from 30 s to 3 h), in groups of 8, on
128 slots; a step trains for 120 s and is published in 5 s. All rules run on the same driver, over
the same rollouts; only what may begin and what is trained next differs. Columns: time of the whole
run, its start and its end with it, over the limit that slots and trainer set; largest staleness;
share of rollouts dropped; mean duration of what was trained over the true one; share of trained
tokens beyond the bound, which a run that masks masks.

Ours holds all four at a batch of 256: at most 1.05 times the limit, never older than 8 versions,
under 1% dropped, duration within 2%. At a batch of 128 nothing can (a three-hour rollout spans 18
steps): the frontier of waiting, masking, limiting and a bound of 16 is printed.

    python benchmarks/scheduling.py [--json] [--steps 200] [--seeds 3]
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flywheel.train_section import RLSection
from trainer.orchestrator.contract import Attempt
from trainer.orchestrator.scheduler import Ready, Scheduler
from trainer.orchestrator.simulation import World, heavy_tailed, measured, simulate

SLOTS, GROUP = 128, 8
COLUMNS = ("over_limit", "staleness", "dropped", "duration", "overaged")


class Admission(Scheduler):
    """At most so many batches are begun ahead of the trainer; it takes what is complete, in the
    order of completion, and waits for nobody (AReaL's staleness control at admission)."""

    def overaged(self) -> list[Ready]:
        return []

    def _oldest(self) -> tuple[Ready, ...]:
        size = self.rl.groups_per_step
        found = tuple(self.ready.values())[:size]
        return found if len(found) == size and self.taken < self.rl.steps else ()

    def batch(self) -> tuple[Ready, ...] | None:
        return self._oldest() or None

    def stragglers(self) -> list[Attempt]:
        return []


class Window(Admission):
    """Strictly in the order in which groups began, within a window of the bound."""

    def _oldest(self) -> tuple[Ready, ...]:
        size = self.rl.groups_per_step
        numbers = [one.number for one in self.ready.values()]
        numbers += [one.visit.number for one in self.open.values()]
        next_ones = set(sorted(numbers)[:size])
        found = [one for one in self.ready.values() if one.number in next_ones]
        if len(found) < size or self.taken >= self.rl.steps:
            return ()
        return tuple(sorted(found, key=lambda one: one.number))


class Dropping(Admission):
    """Never waits: a group that is too old is stopped where it is, and dropped."""

    def room(self) -> bool:
        return not self.exhausted and self.taken < self.rl.steps

    def overaged(self) -> list[Ready]:
        return Scheduler.overaged(self)

    def batch(self) -> tuple[Ready, ...] | None:
        return None if self.stragglers() else super().batch()

    def stragglers(self) -> list[Attempt]:
        return [
            attempt
            for one in self.open.values()
            if one.version < self.oldest
            for attempt in (*one.running.values(), *one.waiting)
        ]


class Rule(NamedTuple):
    name: str
    bound: int
    overaged: str = "wait"
    plan: Callable[..., Scheduler] = Scheduler


OTHERS = (
    Rule("synchronous", 0),
    Rule("admission cap 4", 4, plan=Admission),
    Rule("windowed FIFO 6", 6, plan=Window),
    Rule("drop beyond 4", 4, "stop", Dropping),
    Rule("drop beyond 8", 8, "stop", Dropping),
)
OURS = Rule("ours, bound 8", 8)
FRONTIER = (
    Rule("ours, bound 8, waits", 8),
    Rule("ours, bound 8, masks", 8, "mask"),
    Rule("ours, bound 8, stops", 8, "stop"),
    Rule("ours, bound 16, waits", 16),
)


def row(rule: Rule, batch: int, steps: int, seeds: int) -> dict[str, Any]:
    rl = RLSection(
        steps=steps, groups_per_step=batch // GROUP, group_size=GROUP, slots=SLOTS,
        max_staleness=rule.bound, overaged=rule.overaged,
    )  # fmt: skip
    found = []
    for seed in range(seeds):
        world = World(heavy_tailed(seed))
        found.append(measured(world, rl, simulate(world, rl, plan=rule.plan)))
    columns = {name: [round(float(getattr(one, name)), 4) for one in found] for name in COLUMNS}
    return {"rule": rule.name, "batch": batch, **columns}


def shown(line: dict[str, Any]) -> str:
    cells = ""
    for name in COLUMNS:
        low, mid, high = min(line[name]), statistics.fmean(line[name]), max(line[name])
        cells += f"{f'{mid:.3f} ({low:.3f}..{high:.3f})':>25}"
    return f"{line['rule']:24}{line['batch']:>6}{cells}"


def holds(line: dict[str, Any]) -> dict[str, bool]:
    return {
        "over_limit": max(line["over_limit"]) <= 1.05,
        "staleness": max(line["staleness"]) <= 8,
        "dropped": max(line["dropped"]) < 0.01,
        "duration": all(abs(one - 1) <= 0.02 for one in line["duration"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument(
        "--steps", type=int, default=200, help="optimizer steps of a run; default: %(default)s"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        help="seeds of the rollouts' durations, from 0; default: %(default)s",
    )
    args = parser.parse_args()
    wanted = [(rule, 256) for rule in (OURS, *OTHERS)]
    wanted += [(rule, 128) for rule in (*FRONTIER, *OTHERS)]
    if not args.json:
        print(f"{'rule':24}{'batch':>6}" + "".join(f"{name:>25}" for name in COLUMNS))
    table = []
    for rule, batch in wanted:
        table.append(row(rule, batch, args.steps, args.seeds))
        if not args.json:
            print(shown(table[-1]), flush=True)
    held = holds(table[0])
    if args.json:
        print(json.dumps({"steps": args.steps, "table": table, "holds": held}))
    else:
        print("ours at 256 holds:", ", ".join(name for name, is_so in held.items() if is_so))
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
