"""A store of an earlier version, brought up to this program's: `python -m storage.upgrade HOME`.

In a process of its own, so that DuckDB's memory stays out of a server that lives for long. A store
that is of this version, or none, is left as it is.
"""

import sys
from pathlib import Path

from flywheel import children
from flywheel.errors import FlywheelError
from flywheel.home import Home
from storage.committer import bring_up


def main() -> int:
    children.follow_parent()
    try:
        bring_up(Home(Path(sys.argv[1])))
    except FlywheelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
