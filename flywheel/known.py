"""Which projects this home has met, and where their folders were last.

A command that was given a project's folder remembers it; what knows only the home (dashboard,
schedule, doctor) finds it again.
"""

import json
from pathlib import Path

from flywheel import durable
from flywheel.home import Home
from flywheel.project import Project


def remember(home: Home, project: Project) -> None:
    path = home.projects / f"{project.name}.json"
    if known(home).get(project.name) != project.folder:
        durable.write(path, json.dumps({"folder": str(project.folder)}).encode())


def known(home: Home) -> dict[str, Path]:
    """Project -> its folder, which may be gone by now. A file that cannot be read is passed over:
    the next command that names the project writes it anew."""
    found = {}
    for path in sorted(home.projects.glob("*.json")):
        try:
            found[path.stem] = Path(json.loads(path.read_bytes())["folder"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found
