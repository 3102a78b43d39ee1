"""Runs turns in forked children, so that the imports are paid once and a child may be killed.

In: one JSON line a child on standard input: {"home", "project", "failpoint", "kill_after"}. Out:
one JSON line: {"status": exit status or -signal, "report": the turn's or null, "error": text}.
"""

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

PRELOADED = (
    "flows.turn", "storage.curate", "storage.gate", "trainer.job", "trainer.loop", "duckdb",
    "great_expectations", "mlflow", "openai", "peft", "polars", "scipy.stats",
    "sklearn.feature_extraction.text", "transformers",
)  # fmt: skip


def main() -> None:
    from flywheel.home import Home
    from flywheel.settings import quiet_dependencies

    quiet_dependencies(Home(Path(sys.argv[1])))
    for name in PRELOADED:
        importlib.import_module(name)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(order: dict) -> dict:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        turn_and_leave(order, writer)
    os.close(writer)
    timer = None
    if order.get("kill_after"):
        timer = threading.Timer(order["kill_after"], os.kill, (child, signal.SIGKILL))
        timer.start()
    with os.fdopen(reader) as said:
        told = said.read()
    _, status = os.waitpid(child, 0)
    if timer:
        timer.cancel()
    found = json.loads(told) if told else {"report": None, "error": None}
    return {"status": os.waitstatus_to_exitcode(status), **found}


def turn_and_leave(order: dict, writer: int) -> None:
    from flywheel import failpoints

    os.environ["FLYWHEEL_HOME"] = order["home"]
    os.environ["FLYWHEEL_TRAINER"] = "inline"
    os.environ["FLYWHEEL_THREADS"] = "1"
    if order.get("failpoint"):
        failpoints.arm(order["failpoint"])
    try:
        from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

        from flows.turn import turn

        with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: f"{order['home']}/prefect/storage"}):
            told = {"report": turn(order["project"]), "error": None}
    except BaseException:
        told = {"report": None, "error": traceback.format_exc()[-2000:]}
    os.write(writer, json.dumps(told, default=str).encode())
    time.sleep(0)
    os._exit(0 if told["report"] else 1)


if __name__ == "__main__":
    main()
