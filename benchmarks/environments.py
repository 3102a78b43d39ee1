"""Environments beside what one would use instead, a part after the other, in one run.

    python benchmarks/environments.py [PART ...] [options of the parts] [--json]

Parts: `rollouts` (many in flight with a scripted model of 50 ms, and memory over many), `sandbox`
(start to result), `grading` (traces a second). Each says by `--help` what can be set; what a part
does not know is the others'.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "rollouts": "benchmarks.environments_rollouts",
    "sandbox": "benchmarks.environments_sandbox",
    "grading": "benchmarks.environments_grading",
}
"""Each module has `measure(arguments) -> dict`, which prints as it goes."""


def main() -> None:
    # This file's folder would hide the package of its own name.
    sys.path[0] = str(ROOT)
    given = sys.argv[1:]
    chosen = [part for part in given if part in PARTS] or list(PARTS)
    options = [word for word in given if word not in PARTS and word != "--json"]
    found = {part: import_module(PARTS[part]).measure(options) for part in chosen}
    if "--json" in given:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
