"""For all tests: quiet dependencies before anything imports them, and no home of the person's."""

import os
import signal
import tempfile
from pathlib import Path

from flywheel.home import Home
from flywheel.settings import quiet_dependencies

os.environ["FLYWHEEL_HOME"] = tempfile.mkdtemp(prefix="flywheel-tests-")
Path(os.environ["FLYWHEEL_HOME"], "prefect").mkdir()
quiet_dependencies(Home(Path(os.environ["FLYWHEEL_HOME"])))

# A suite that is run in the background inherits an ignored Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
