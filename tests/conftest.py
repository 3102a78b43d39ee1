"""For all tests: quiet dependencies before anything imports them, and no home of the person's."""

import os
import tempfile
from pathlib import Path

from flywheel.home import Home
from flywheel.settings import quiet_dependencies

os.environ["FLYWHEEL_HOME"] = tempfile.mkdtemp(prefix="flywheel-tests-")
Path(os.environ["FLYWHEEL_HOME"], "prefect").mkdir()
quiet_dependencies(Home(Path(os.environ["FLYWHEEL_HOME"])))
