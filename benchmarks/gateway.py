"""Our gateway with durable capture beside what a user would put there instead, in one run: nothing
(direct), a bare aiohttp pass-through that writes JSON lines, LiteLLM with its logger, MLflow's
gateway with its traces.

    python benchmarks/gateway.py [--peers aiohttp litellm mlflow] [--rounds 3] [--seconds 6]
                                 [--rate 10] [--strict] [--memory REQUESTS]
                                 [--harness FILE] [--json]

Measured by the shared harness (`gateway_bench.py`; --harness says where), which drives all targets
in turns, in shuffled order, through one scripted upstream: added latency and delay of the first
token, CPU time of the whole process tree, requests a second and core, memory. Then here: which
fields of a call are in what each wrote, and how many answered calls are not there after a kill -9.
--memory instead sends that many requests to ours alone and says what its memory did meanwhile.
`make install-peers` brings LiteLLM; MLflow is in our own environment.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gateway_kept import fields_kept, lost_to_a_kill  # noqa: E402
from benchmarks.gateway_targets import Start, Target, upstream  # noqa: E402
from benchmarks.gateway_upstream import loaded  # noqa: E402

HARNESS = ROOT.parent / "shared" / "bench" / "gateway_bench.py"
PEERS = ("aiohttp", "litellm", "mlflow")
_BATCH = 10_000


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        help="who stands beside ours; default: all of them",
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=6, help="of each measurement; default: %(default)s"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=10,
        help="whole answers a second, a fifth as many streams; default: %(default)s, which the "
        "slowest can hold",
    )
    parser.add_argument(
        "--strict", action="store_true", help="ours also with capture that waits for the disk"
    )
    parser.add_argument(
        "--memory",
        type=int,
        metavar="REQUESTS",
        help="only: what the memory of ours does over so many requests",
    )
    parser.add_argument(
        "--harness", type=Path, default=HARNESS, help="gateway_bench.py; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    return parser.parse_args()


def compared(options: argparse.Namespace, start: Start, folder: Path) -> dict[str, Any]:
    targets: list[Target] = []
    try:
        for begin in (start.ours, *([start.strict] if options.strict else []),
                      *(getattr(start, name) for name in options.peers)):  # fmt: skip
            targets.append(begin())
            print(f"{targets[-1].name} is up", file=sys.stderr, flush=True)
        measured = _measured(options, targets, start.upstream, folder)
        kept = {one.name: fields_kept(one) for one in targets}
        killed = {one.name: lost_to_a_kill(one) for one in targets}
    finally:
        for one in targets:
            one.kill()
    return {"benchmark": "gateway", **measured, "fields_kept": kept, "killed": killed}


def _measured(
    options: argparse.Namespace, targets: list[Target], port: int, folder: Path
) -> dict[str, Any]:
    found = folder / "harness.json"
    command = [sys.executable, str(options.harness), "bench", "--json", str(found)]
    command += ["--upstream", f"http://127.0.0.1:{port}", "--rounds", str(options.rounds)]
    command += ["--seconds", str(options.seconds), "--max-seconds", str(options.seconds * 2 / 3)]
    command += ["--rate", str(options.rate), "--stream-rate", str(options.rate / 5)]
    for one in targets:
        command += ["--target", one.spec()]
    # Its table is for people: to standard error, as all that is not the one object.
    subprocess.run(command, stdout=sys.stderr, check=True)
    said = json.loads(found.read_text())
    return {"table": said["table"], "targets": said["targets"]}


def over_time(options: argparse.Namespace, start: Start) -> dict[str, Any]:
    """Resident memory of ours after each batch of requests."""
    harness = loaded(options.harness)
    ours = start.ours()
    seen: list[dict[str, float]] = []

    async def drive() -> None:
        target = harness.Target(ours.spec())
        url = f"http://127.0.0.1:{start.upstream}"
        await harness.control(url, body_ms=1, first_ms=1, chunk_ms=0)
        done = 0
        while done < options.memory:
            batch = min(_BATCH, options.memory - done)
            # A tenth of them are streams.
            for stream, count in ((False, batch - batch // 10), (True, batch // 10)):
                out = await harness.closed_loop(target, 16, 3600, stream, 50, done, count)
                if out["err"]:
                    raise SystemExit(f"{len(out['err'])} failed: {out['err'][0]}")
            done += batch
            seen.append({"requests": done, "rss_mb": round(target.rss(), 1)})
            print(f"{done:>8} requests  {seen[-1]['rss_mb']:7.1f} MB", file=sys.stderr, flush=True)

    try:
        asyncio.run(drive())
    finally:
        ours.kill()
    half = seen[len(seen) // 2 :]
    grown = half[-1]["rss_mb"] - half[0]["rss_mb"]
    return {"benchmark": "gateway memory", "over": seen, "grown_in_second_half_mb": round(grown, 1)}


def main() -> None:
    options = asked()
    if not options.harness.is_file():
        raise SystemExit(f"no harness at {options.harness}: say where it is with --harness")
    litellm = ROOT / ".venv-litellm"
    if not options.memory and "litellm" in options.peers and not litellm.is_dir():
        raise SystemExit("LiteLLM is not there: `make install-peers`, or name other --peers")
    with tempfile.TemporaryDirectory() as temporary, upstream(options.harness) as port:
        folder = Path(temporary)
        start = Start(folder, options.harness, port)
        if options.memory:
            found = over_time(options, start)
        else:
            found = compared(options, start, folder)
            for name, how in found["fields_kept"].items():
                lost = {one: [key for key, kept in how[one].items() if not kept] for one in how}
                print(f"{name}: fields lost {lost}; {found['killed'][name]}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    main()
