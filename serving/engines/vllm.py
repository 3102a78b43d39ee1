"""vLLM as a child process, out of the environment that `make install-vllm` made.

Enter: a base model's folder and the project's [serving]. It listens on the loopback address, wants
a key that only this server knows, keeps its caches in the home and calls nobody. How it is watched,
started again and stopped is `supervised`'s; what it is started with `vllm_command`'s.
"""

import logging
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from flywheel.errors import CorruptFile, MissingPart, Refused
from flywheel.home import Home
from flywheel.serving_section import ServingSection
from serving.engines.adapter_files import is_tied, tensors_of
from serving.engines.presets import role_of
from serving.engines.reach import Access
from serving.engines.rendering import Rendered, rendered
from serving.engines.supervised import Adapters, Supervised
from serving.engines.vllm_command import flags, rank_room, variables
from serving.engines.vllm_rendering import differs
from serving.verify import bounds_of

_HERE = Path(__file__).resolve().parent
_log = logging.getLogger("flywheel.engine")


class VllmProcess(Supervised):
    def __init__(
        self,
        home: Home,
        model: Path,
        serving: ServingSection,
        *,
        environment: Path,
        threads: int = 2,
        adapters: Adapters = dict,
        port: int | None = None,
        ready_s: float = 900.0,
        variables: Mapping[str, str] | None = None,
        in_place: bool = False,
        number: int = 0,
        key: str | None = None,
    ) -> None:
        """
        Args:
            environment: vLLM's own virtual environment.
            in_place: full weights are replaced as it runs, where it began with an untied model.
                For that its routes for development are open to whoever has its key: for an engine
                that one run alone uses.
            variables: environment variables beside ours.
            number: among its equals in one home: each has its own files.
            key: that it wants; None = one of its own.

        Raises:
            MissingPart: no vLLM in `environment`, or the build for another device.
            UsageError: [serving] asks for what vLLM cannot do.
        """
        super().__init__(
            home,
            model,
            adapters=adapters,
            port=port,
            ready_s=ready_s,
            bounds=bounds_of(serving, "vllm"),
        )
        self._python = python_of(environment, serving.device)
        self._serving, self._threads = serving, threads
        self._variables = dict(variables or {})
        self._in_place = in_place
        if in_place:
            self._variables["VLLM_SERVER_DEV_MODE"] = "1"
        rank_room(serving.max_rank)  # is told now, not after a minute
        self._role = role_of(home, serving)
        self._key, self._number = key or secrets.token_urlsafe(24), number
        self._rendered = Rendered(why="not compared yet")

    @property
    def access(self) -> Access:
        return Access(
            kind="vllm",
            key=self._key,
            model=str(self.model),
            copies=str(self._place / "adapters"),
            max_rank=self._serving.max_rank,
            template_digest=self._rendered.template_digest,
            tokenizer_digest=self._rendered.tokenizer_digest,
        )

    @property
    def _place(self) -> Path:
        return self.home.engine / str(self._number) if self._number else self.home.engine

    def load_weights(self, folder: Path) -> None:
        """As it runs, if it was made for that and its model is untied; nothing may be under way at
        it. Else it starts anew on `folder`; where that fails, on the old model again. Both heads
        are read from the file then: weights that are reloaded in place leave a stale head where it
        is tied to the embeddings.

        Raises:
            Refused: `folder` is no model, or one whose head is tied; the old one serves on.
        """
        try:
            if is_tied(folder):
                raise Refused(
                    f"{folder} ties its output head to its embeddings: save it untied, so that "
                    "what is served can be trained on and replaced"
                )
            if not list(folder.glob("*.safetensors")):
                raise Refused(f"{folder} has no weights (*.safetensors)")
            for path in folder.glob("*.safetensors"):
                tensors_of(path)
        except CorruptFile as error:
            raise Refused(str(error)) from error
        if not self._in_place or not self.alive or is_tied(self.model):
            super().load_weights(folder)
            return
        with self.client() as client:
            client.reload_weights(folder)
        self.model = folder.resolve()

    def _launch(self) -> None:
        """The trainer's rendering is worked out while vLLM starts, then the two are compared."""
        self._rendered = Rendered(why="not compared yet")
        found: list[Rendered] = []
        rendering = threading.Thread(target=lambda: found.append(self._render()), daemon=True)
        rendering.start()
        super()._launch()
        rendering.join()
        with self.client() as client:
            why = found[0].why or differs(client, found[0])
        if why is not None:
            _log.warning("no template digest is recorded: %s", why)
        self._rendered = Rendered(why=why) if why else found[0]

    def _render(self) -> Rendered:
        try:
            return rendered(self.home, self.model)
        except (OSError, ValueError) as error:
            return Rendered(why=f"the trainer's rendering is not known: {error}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        sockets = self._place / "sockets"
        for old in (sockets, self._place / "adapters"):
            shutil.rmtree(old, ignore_errors=True)
        sockets.mkdir(parents=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        launcher = [str(self._python), "-P", str(_HERE / "launch_vllm.py"), str(self.port)]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*launcher, *flags(self.model, self._serving, self._role)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited(), **self._environment(), **self._variables},
                # Sockets lie here by a relative name: their paths may only be 107 bytes long.
                cwd=sockets,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        return variables(
            self.model,
            self._serving,
            key=self._key,
            threads=self._threads,
            place=self._place,
            role=self._role,
        )


def python_of(environment: Path, device: str | None) -> Path:
    """vLLM's Python; `device`: None = whichever it was made for.

    Raises:
        MissingPart: it is not there, or was made for another device.
    """
    bring = "make install-vllm" + (" DEVICE=gpu" if device == "gpu" else "")
    python = environment.absolute() / "bin" / "python"
    if not python.exists():
        raise MissingPart(
            f"vLLM is not installed at {environment}: `{bring}` brings it, FLYWHEEL_VLLM names "
            'another place, and engine = "embedded" does without'
        )
    stamp = environment / ".installed"
    made_for = stamp.read_text().split()[0] if stamp.is_file() and stamp.stat().st_size else device
    if device is not None and made_for != device:
        raise MissingPart(
            f"the vLLM at {environment} is built for the {made_for}, and [serving] device is "
            f"{device}: `{bring}`"
        )
    return python


def inherited() -> dict[str, str]:
    """Our environment without what is meant for our own Python, or would steer vLLM unseen."""
    ours = ("PYTHON", "VIRTUAL_ENV", "FLYWHEEL_", "VLLM_", "PREFECT_", "MLFLOW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
