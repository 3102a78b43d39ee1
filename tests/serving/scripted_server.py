"""A whole server in a process of its own, with a scripted engine as its child.

`python -m tests.serving.scripted_server PROJECT_FOLDER PORT`; FLYWHEEL_HOME as ever.
"""

import os
import subprocess
import sys
from pathlib import Path

from flywheel import children
from flywheel.errors import FlywheelError
from flywheel.project import load_project
from flywheel.settings import load
from serving.engines.process import EngineProcess
from serving.keeper import adapters_of
from serving.presence import ServerRecord
from serving.server import serve


class ScriptedEngine(EngineProcess):
    """The supervision is ours, what it supervises is scripted."""

    def _spawn(self) -> "subprocess.Popen[bytes]":
        child = children.start("tests.serving.scripted_upstream", [str(self.port)], log=self.log)
        (self.home.root / "engine.pid").write_text(str(child.pid))
        return child


def told(record: ServerRecord) -> None:
    print("ready", record.url, flush=True)


if __name__ == "__main__":
    children.follow_parent()
    settings = load()
    home = settings.at()
    projects = [load_project(Path(folder)) for folder in sys.argv[1].split(os.pathsep)]
    names = frozenset(project.name for project in projects)
    try:
        serve(
            home,
            projects,
            settings,
            port=int(sys.argv[2]),
            engine=ScriptedEngine(home, Path(), adapters=lambda: adapters_of(home, names)),
            ready=told,
        )
    except FlywheelError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
