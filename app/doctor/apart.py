"""`python -m app.doctor.apart CHECK CASE`: one check in a process of its own, a finding a line.

The last line is null, so that one who ends the process is told from a check that has ended.

Whatever the code that it looks at prints goes to standard error.
"""

import json
import os
import sys
from pathlib import Path

import msgspec

from app.doctor.examine import failed
from app.doctor.finding import Case
from app.doctor.unfit import load_sound
from flywheel import children
from flywheel.settings import quiet_dependencies


def packed(case: Case) -> str:
    return json.dumps({"folders": [str(one) for one in case.folders], "deep": case.deep})


def main() -> int:
    children.follow_parent()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    from app.doctor.table import CHECKS

    name, given = sys.argv[1], json.loads(sys.argv[2])
    settings, _ = load_sound()
    quiet_dependencies(settings.at())
    case = Case(settings.at(), settings, tuple(map(Path, given["folders"])), given["deep"])
    try:
        for said in CHECKS[name].looks(case):
            out.write(msgspec.json.encode(said) + b"\n")
    except Exception as error:  # it is reported, as what it is
        out.write(msgspec.json.encode(failed(name, error)) + b"\n")
    out.write(b"null\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
