"""Import of chat traces of 1.7 KB, up to a million: time, memory, growth, re-import, beside DuckDB.

Ours imports (recognised, normalised, raw kept, once each, committed, queryable, published where a
lake is set). The peer is what a user would write instead: DuckDB's read_json into a table keyed by
hash, with an anti-join; it understands nothing of what it stores. Each step runs in a process of
its own, both in one run. `--shared FILE` runs the bench that peers are measured by too, on 10,000
traces. Curation is measured by data_curation.py.

    python benchmarks/data.py [--json] [--rows 100000 1000000] [--folder DIR] [--shared FILE]
"""

import argparse
import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDS = str.split(
    "the order was shipped on monday from our warehouse and should arrive within two working days "
    "please check the tracking page if nothing moves call support we can refund the express fee"
)
TOOLS = (("get_order", "order_id"), ("refund", "payment_id"), ("search_docs", "query"))


def row(number: int, seed: int) -> dict[str, Any]:
    """One support conversation with a tool call, as a gateway would log it."""
    dice = random.Random(seed * 1_000_003 + number)

    def text(words: int) -> str:
        return " ".join(dice.choice(WORDS) for _ in range(words))

    tool, argument = dice.choice(TOOLS)
    call = f"call_{number:08x}"
    function = {"name": tool, "arguments": json.dumps({argument: str(dice.randrange(10**9))})}
    schema = {"type": "object", "properties": {argument: {"type": "string"}}}
    start = 1_793_500_000_000_000_000 + number * 37_000_000
    return {
        "trace_id": hashlib.md5(f"{seed}-{number}".encode()).hexdigest(),
        "span_id": hashlib.md5(f"s{seed}-{number}".encode()).hexdigest()[:16],
        "session_id": f"session-{dice.randrange(number // 3 + 1)}",
        "start_ns": start,
        "end_ns": start + dice.randint(200, 4000) * 1_000_000,
        "model": "support-7b",
        "request": {
            "model": "support-7b",
            "messages": [
                {"role": "system", "content": "You are a support agent. " + text(44)},
                {"role": "user", "content": "where is my order " + text(dice.randint(15, 45))},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call, "content": json.dumps({"note": text(14)})},
            ],
            "temperature": 0.2,
            "max_tokens": 256,
            "tools": [{"type": "function", "function": {"name": tool, "parameters": schema}}],
        },
        "response": {
            "id": f"chatcmpl-{number:010x}",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text(dice.randint(20, 45))},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": dice.randint(150, 420),
                "completion_tokens": dice.randint(20, 80),
            },
        },
        "feedback": dice.choice([None, None, None, 1, -1]),
    }


def generate(path: Path, rows: int, seed: int) -> None:
    with path.open("w") as file:
        for number in range(rows):
            file.write(json.dumps(row(number, seed), separators=(",", ":")) + "\n")


# --- the steps, each in a process of its own ------------------------------------------------------


def ours(file: Path, folder: Path) -> int:
    from flywheel.home import Home
    from storage.importer import import_path
    from storage.queries import counts

    home = Home(folder)
    import_path(home, file, project="bench")
    return counts(home, "bench")["traces"]


def duckdb_keyed(file: Path, folder: Path) -> int:
    import duckdb

    columns = (
        "{trace_id: 'VARCHAR', span_id: 'VARCHAR', session_id: 'VARCHAR', start_ns: 'BIGINT', "
        "end_ns: 'BIGINT', model: 'VARCHAR', request: 'JSON', response: 'JSON', feedback: 'INT'}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    database = duckdb.connect(folder / "peer.duckdb", config={"threads": 2})
    database.execute(
        "CREATE TABLE IF NOT EXISTS traces (trace_id VARCHAR, span_id VARCHAR, session_id VARCHAR, "
        "start_ns BIGINT, end_ns BIGINT, model VARCHAR, request JSON, response JSON, feedback INT, "
        "h VARCHAR)"
    )
    database.execute(
        "INSERT INTO traces SELECT * FROM (SELECT *, sha256(concat(trace_id, span_id, "
        "request::VARCHAR, response::VARCHAR)) AS h FROM read_json(?, "
        f"format = 'newline_delimited', columns = {columns})) AS new "
        "WHERE NOT EXISTS (SELECT 1 FROM traces WHERE traces.h = new.h)",
        [str(file)],
    )
    database.execute("CHECKPOINT")
    found = database.execute("SELECT count(*) FROM traces").fetchone()
    database.close()
    return int(found[0]) if found else 0


STEPS = {"ours": ours, "duckdb_keyed": duckdb_keyed}


def peak_mib() -> float:
    """Of this process and of those that it waited for."""
    of = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(one).ru_maxrss for one in of) / 1024


def shared(script: Path, folder: Path) -> dict[str, Any]:
    """`flywheel import` of 10,000 traces in the bench that peers are measured by: CPU seconds."""
    ours = (
        f"flywheel=cmd:env FLYWHEEL_HOME={{db}} {Path(sys.executable).parent}/flywheel import "
        "{chat}#count=duckdb:{db}/flywheel.duckdb:SELECT count(*) FROM traces"
    )
    out = folder / "shared.json"
    command = [sys.executable, str(script), "bench", "--n-file", "10000", "--rounds", "3",
               "--work", str(folder / "shared"), "--json", str(out), "--target", ours,
               "--target", "duckdb_keyed=floor:duckdb-keyed"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
    rounds = json.loads(out.read_bytes())["targets"]
    return {
        name: {
            phase: {
                "cpu_s": round(statistics.median(one[phase]["cpu"] for one in found), 3),
                "traces": found[-1][phase]["rows"],
            }
            for phase in ("load", "resend")
        }
        for name, found in rounds.items()
    }


def measure(step: str, file: Path, folder: Path) -> dict[str, float]:
    """CPU and wall seconds of one step, and how many traces it left queryable."""
    command = [sys.executable, __file__, "--step", step, "--file", str(file), "--to", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def bench(folder: Path, sizes: list[int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for size in sizes:
        file = folder / f"{size}.jsonl"
        generate(file, size, seed=1)
        longer = folder / f"{size}-and-one.jsonl"
        with file.open("rb") as lines, longer.open("wb") as out:
            for number, line in enumerate(lines):
                if number == size // 2:
                    more = json.dumps(row(size, 1), separators=(",", ":"))
                    out.write(more.encode() + b"\n")
                out.write(line)
        for name in STEPS:
            home = folder / f"{name}-{size}"
            for kind, source in (("first", file), ("again", file), ("one_more", longer)):
                found = measure(name, source, home)
                steps.append({"target": name, "rows": size, "import": kind, **found})
                print(
                    f"{name:13} {size:>7} {kind:9} {found['cpu_s']:7.2f} CPU s "
                    f"{found['wall_s']:7.2f} s {found['peak_mib']:5.0f} MiB  "
                    f"{found['traces']:.0f} traces",
                    file=sys.stderr,
                )
    return {"benchmark": "data", "steps": steps, "ratios": ratios(steps, sizes)}


def ratios(steps: list[dict[str, Any]], sizes: list[int]) -> dict[str, float]:
    cpu = {(one["target"], one["rows"], one["import"]): one["cpu_s"] for one in steps}
    small, large = min(sizes), max(sizes)
    grown = large / small
    found: dict[str, float] = {}
    for name in STEPS:
        first = cpu[name, large, "first"]
        found[f"{name}_growth"] = round(first / cpu[name, small, "first"] / grown, 3)
        found[f"{name}_again"] = round(cpu[name, large, "again"] / first, 3)
        found[f"{name}_one_more"] = round(cpu[name, large, "one_more"] / first, 3)
    theirs = cpu["duckdb_keyed", large, "first"]
    found["ours_over_duckdb_keyed"] = round(cpu["ours", large, "first"] / theirs, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary one by default")
    parser.add_argument("--shared", type=Path, help="ingest_bench.py, by which peers are measured")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        wall = time.perf_counter()
        traces = STEPS[options.step](options.file, options.to)
        took = {
            "wall_s": round(time.perf_counter() - wall, 3),
            "cpu_s": round(sum(os.times()[:4]), 3),
            "peak_mib": round(peak_mib()),
        }
        print(json.dumps({"traces": traces, **took}))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = bench(folder, sorted(options.rows))
        if options.shared:
            found["shared"] = shared(options.shared, folder)
    for name, value in found["ratios"].items():
        print(f"{name:24} {value}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
