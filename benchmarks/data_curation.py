"""Curation of a million recorded traces, end to end: time, memory, and whether what is bad goes.

A store of graded traces of about 1.7 KB is prepared (not measured); a process of its own then does
what a turn does: candidates out of the store, leakage against every held-out problem, the rules
with near-duplicates, the dataset written, the leakage looked at once more in what was written, the
gates. Planted are exact and near copies, and held-out texts, whole and with a tenth of their words
replaced.

    python benchmarks/data_curation.py [--rows 100000] [--heldout 5000] [--folder DIR] [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = "You are a support agent of a shop. Answer in two or three sentences, politely. " * 4
PROJECT = """name = "bench"
model.base = "base"
environment.path = "environment.py:Desk"
[train]
algorithm = "teacher"
[train.teacher]
url = "http://127.0.0.1:9/v1"
model = "none"
[curate]
sources = ["recorded"]
rules = [
    {name = "fidelity", accept = ["trainable", "renderable"]},
    {name = "self_training"},
    {name = "min_reward", value = 1.0},
    {name = "exact_duplicates"},
    {name = "near_duplicates", threshold = 0.8},
    {name = "length", max_tokens = 4096},
]
"""
ENVIRONMENT = """from environments.define import Environment, reward


class Desk(Environment):
    @reward()
    def right(self, answer, problem):
        return answer == problem.answer
"""
KINDS = ("copy", "near", "leak", "edited")
EVERY = 100
"""One row in so many is planted, of each kind in turn."""


class Texts:
    """Words as they are spread in a language (Zipf), the same for the same seed."""

    def __init__(self, seed: int, words: int = 20_000) -> None:
        import numpy as np

        syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        dice = np.random.default_rng(7)
        made = {"".join(dice.choice(syllables, dice.integers(1, 4))) for _ in range(words * 2)}
        self.words = sorted(made)[:words]
        self.dice = np.random.default_rng(seed)
        shares = 1 / np.arange(2, len(self.words) + 2)
        self.upto = np.cumsum(shares / shares.sum())

    def text(self, length: int) -> str:
        import numpy as np

        places = np.searchsorted(self.upto, self.dice.random(length)).tolist()
        return " ".join([self.words[min(at, len(self.words) - 1)] for at in places])

    def edited(self, text: str, share: float) -> str:
        words = text.split()
        chosen = self.dice.choice(len(words), max(1, round(share * len(words))), replace=False)
        for at in chosen.tolist():
            words[at] = self.words[int(self.dice.integers(len(self.words)))]
        return " ".join(words)


def planted(number: int) -> str | None:
    return KINDS[number // EVERY % len(KINDS)] if number % EVERY == EVERY - 1 else None


def rows(count: int, heldout: list[str]) -> Iterator[dict[str, Any]]:
    texts = Texts(1)
    before = ("", "")
    for number in range(count):
        asked, answered = texts.text(90), texts.text(60)
        kind = planted(number)
        if kind == "copy":
            asked, answered = before
        elif kind == "near":
            asked, answered = texts.edited(before[0], 0.01), before[1]
        elif kind == "leak":
            asked = heldout[number % len(heldout)]
        elif kind == "edited":
            asked = texts.edited(heldout[number % len(heldout)], 0.1)
        before = asked, answered
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
        message = {"role": "assistant", "content": answered}
        yield {
            "id": f"chatcmpl-{number:010x}", "created": 1_790_000_000 + number,
            "model": "support-7b", "request": {"model": "support-7b", "messages": messages},
            "response": {
                "id": f"chatcmpl-{number:010x}", "model": "support-7b",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 220, "completion_tokens": 80},
            },
        }  # fmt: skip


def prepare(folder: Path, count: int, held: int) -> dict[str, Any]:
    from flywheel.records import Grade, Problem, say
    from flywheel.settings import load
    from storage.committer import commit
    from storage.database import reading
    from storage.importer import import_path
    from storage.inbox import Inbox

    home, texts = load().at(), Texts(2)
    home.root.mkdir(parents=True, exist_ok=True)
    heldout = [texts.text(90) for _ in range(held)]
    file = folder / "rows.jsonl"
    with file.open("w") as out:
        for row in rows(count, heldout):
            out.write(json.dumps(row) + "\n")
    import_path(home, file, project="bench")
    file.unlink()
    problems = [
        Problem(environment="other", messages=(say("user", text),), text=text, split="heldout")
        for text in heldout
    ]
    Inbox(home).append(problems)
    with reading(home) as database:
        assert database is not None
        ids = [one for (one,) in database.execute("SELECT id FROM traces").fetchall()]
    for start in range(0, len(ids), 50_000):
        some = ids[start : start + 50_000]
        Inbox(home).append(
            [
                Grade(trace_id=one, reward="right", value=1.0, confirmed_by="feedback")
                for one in some
            ]
        )
        commit(home)
    return {"traces": len(ids)}


def curate(folder: Path) -> dict[str, Any]:
    from flywheel.settings import load
    from storage.datasets import verified
    from tasks.curate import curate_dataset
    from tasks.turns import turn_to_come

    turn = turn_to_come(str(folder))
    wall, cpu = time.perf_counter(), sum(os.times()[:2])
    step: Any = curate_dataset
    said = step.fn(turn, {})
    return {
        "wall_s": round(time.perf_counter() - wall, 1),
        "cpu_s": round(sum(os.times()[:2]) - cpu, 1),
        "gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "rows": said["rows"],
        "went": {one["rule"]: one["rows_in"] - one["rows_out"] for one in said["rules"]},
        "keys": len(verified(load().at(), said["dataset"]).keys),
    }


def measured(folder: Path, *step: str) -> dict[str, Any]:
    # -P: environments.py beside this file is none of ours.
    command = [sys.executable, "-P", __file__, "--folder", str(folder), *step]
    told = {**os.environ, "PYTHONPATH": str(ROOT), "FLYWHEEL_HOME": str(folder / "home"),
            "PREFECT_HOME": str(folder / "prefect"), "POLARS_MAX_THREADS": "2"}  # fmt: skip
    done = subprocess.run(command, env=told, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def bench(folder: Path, count: int, held: int) -> dict[str, Any]:
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "flywheel.toml").write_text(PROJECT)
    if not (folder / "home").exists():
        measured(folder, "--step", "prepare", "--rows", str(count), "--heldout", str(held))
    found = measured(folder, "--step", "curate")
    there = [kind for number in range(count) if (kind := planted(number))]
    return {
        "benchmark": "curation", "traces": count, "heldout": held, **found,
        "planted": {kind: there.count(kind) for kind in KINDS},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--heldout", type=int, default=5_000)
    parser.add_argument("--folder", type=Path, help="kept, and gone on with where it is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--step", choices=("prepare", "curate"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "prepare":
        print(json.dumps(prepare(options.folder, options.rows, options.heldout)))
        return
    if options.step == "curate":
        print(json.dumps(curate(options.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = bench(folder, options.rows, options.heldout)
    print(
        f"{found['traces']:,} traces against {found['heldout']:,} held-out problems: "
        f"{found['wall_s']} s, {found['cpu_s']} CPU s, {found['gb']} GB; {found['rows']:,} rows",
        file=sys.stderr,
    )
    for rule, count in found["went"].items():
        print(f"  {rule:18} {count:>9,}", file=sys.stderr)
    print(f"  planted: {found['planted']}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
