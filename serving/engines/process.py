"""The embedded engine as a child process.

Enter: a model's folder and what says which adapters it must serve. How it is watched, started
again and stopped is `supervised`'s.
"""

import subprocess
from pathlib import Path

from flywheel import children
from flywheel.home import Home
from serving.engines.reach import Access
from serving.engines.supervised import Adapters, Supervised


class EngineProcess(Supervised):
    def __init__(
        self,
        home: Home,
        model: Path,
        *,
        threads: int = 2,
        context: int = 2048,
        adapters: Adapters = dict,
        port: int | None = None,
        ready_s: float = 180.0,
    ) -> None:
        super().__init__(home, model, adapters=adapters, port=port, ready_s=ready_s)
        self._threads, self._context = threads, context

    @property
    def access(self) -> Access:
        return Access(model=str(self.model))

    def load_weights(self, folder: Path) -> None:
        """In the process as it runs: nothing may be under way at it.

        Raises:
            Refused: `folder` is no model, or has other tokens or another shape; the old one serves
                on.
        """
        with self.client() as client:
            client.load_weights(folder)
            self.model = folder.resolve()
            self._load_all(client)

    def _spawn(self) -> subprocess.Popen[bytes]:
        arguments = ["--model", str(self.model), "--port", str(self.port)]
        arguments += ["--threads", str(self._threads), "--context", str(self._context)]
        environment = {
            "OMP_NUM_THREADS": str(self._threads),
            # Threads that spin at barriers starve each other where others use the cores too: with
            # two of them generation was eight times slower beside other work.
            "OMP_WAIT_POLICY": "PASSIVE",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "MALLOC_ARENA_MAX": "2",
        }
        return children.start(
            "serving.engines.embedded", arguments, log=self.log, environment=environment
        )
