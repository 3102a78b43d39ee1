"""vLLM as a child process, out of the environment that `make install-vllm` made.

Enter: a base model's folder and the project's [serving]. It listens on the loopback address, wants
a key that only this server knows, keeps its caches in the home and calls nobody. How it is watched,
started again and stopped is `supervised`'s; docs/decisions/vllm.md says why each flag stands here.
"""

import json
import logging
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from flywheel.errors import CorruptFile, EngineError, MissingPart, Refused, UsageError
from flywheel.home import Home
from flywheel.project import ServingSection
from serving.engines.adapter_files import is_tied, linear_modules, tensors_of
from serving.engines.reach import Access
from serving.engines.rendering import Rendered, rendered
from serving.engines.supervised import Adapters, Supervised
from serving.engines.vllm_rendering import differs

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM makes room for."""
_RESIDENT = 4
"""Adapters in one batch: champion, previous, challenger, candidate."""
_IN_MEMORY = 8
"""Adapters that it keeps beside them before it would read one from its folder again."""
_GIB = 2**30
_MOST_CACHE_GIB = 4
_SMOL = "named SmolLM, trained by Hugging Face"
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
    ) -> None:
        """
        Args:
            environment: vLLM's own virtual environment.
            variables: environment variables beside ours.

        Raises:
            MissingPart: no vLLM in `environment`, or the build for another device.
            UsageError: [serving] asks for what vLLM cannot do.
        """
        super().__init__(home, model, adapters=adapters, port=port, ready_s=ready_s)
        self._python = python_of(environment, serving.device)
        self._serving, self._threads = serving, threads
        self._variables = variables or {}
        self._max_rank = rank_room(serving.max_rank)
        self._key = secrets.token_urlsafe(24)
        self._rendered = Rendered(why="not compared yet")

    @property
    def access(self) -> Access:
        return Access(
            kind="vllm",
            key=self._key,
            model=str(self.model),
            links=str(self._place / "adapters"),
            max_rank=self._serving.max_rank,
            template_digest=self._rendered.template_digest,
            tokenizer_digest=self._rendered.tokenizer_digest,
        )

    @property
    def _place(self) -> Path:
        return self.home.engine

    def load_weights(self, folder: Path) -> None:
        """Starts anew on `folder`; where that fails, on the old model again. Both heads are read
        from the file then: weights that are reloaded in place leave a stale head where it is tied
        to the embeddings.

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
        super().load_weights(folder)

    def _launch(self) -> None:
        """The trainer's rendering is worked out while vLLM starts, then the two are compared."""
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
            return rendered(self.model, self._place / "rendering.json", self.log)
        except (OSError, ValueError) as error:
            return Rendered(why=f"the trainer's rendering is not known: {error}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        sockets = self._place / "sockets"
        shutil.rmtree(sockets, ignore_errors=True)
        sockets.mkdir(parents=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        launcher = [str(self._python), "-P", str(_HERE / "launch_vllm.py"), str(self.port)]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [*launcher, *self._flags()],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**_inherited(), **self._environment(), **self._variables},
                # Sockets lie here by a relative name: their paths may only be 107 bytes long.
                cwd=sockets,
                start_new_session=True,
            )

    def _flags(self) -> Iterator[str]:
        serving = self._serving
        yield from ("--model", str(self.model), "--served-model-name", "base")
        yield from ("--dtype", serving.dtype, "--max-model-len", str(serving.context))
        # Its default, raw, is before temperature: not what the tokens were drawn from.
        yield from ("--logprobs-mode", "processed_logprobs")
        # Sampling that a request does not name is OpenAI's, not the model folder's.
        yield from ("--generation-config", "vllm")
        yield from ("--enable-lora", "--max-lora-rank", str(self._max_rank))
        yield from ("--max-loras", str(_RESIDENT), "--max-cpu-loras", str(_IN_MEMORY))
        # Without the output head: adapted, it ends the engine when prompts are scored in a batch.
        yield from ("--lora-target-modules", *linear_modules(self.model))
        yield from ("--enable-prefix-caching", "--enable-prompt-tokens-details")
        yield from ("--max-num-seqs", str(max(64, serving.max_concurrent)))
        yield from ("--enable-auto-tool-choice", "--tool-call-parser")
        if _SMOL in _template(self.model):
            yield "flywheel_smollm2"
            yield from ("--tool-parser-plugin", str(_HERE / "vllm_tool_parser.py"))
            yield from ("--chat-template", str(_HERE / "smollm2.jinja"))
        else:
            yield "hermes"
        yield from ("--disable-uvicorn-access-log", "--uvicorn-log-level", "warning")
        if serving.device == "cpu":
            yield "--enforce-eager"

    def _environment(self) -> Mapping[str, str]:
        place = str(self._place)
        common = {
            "VLLM_API_KEY": self._key,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_RPC_BASE_PATH": ".",
            "VLLM_CACHE_ROOT": f"{place}/cache",
            "VLLM_CONFIG_ROOT": f"{place}/config",
            "TORCHINDUCTOR_CACHE_DIR": f"{place}/cache/inductor",
            "TRITON_CACHE_DIR": f"{place}/cache/triton",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if self._serving.device == "gpu":
            return common
        return {
            **common,
            "VLLM_CPU_KVCACHE_SPACE": str(self._cache_gib()),
            # Pinned to cores of its choice it would fight with the trainer for the same ones.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self._threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "MALLOC_ARENA_MAX": "2",
            # Small helpers would be compiled by C++ amid the first request, for half a minute.
            "TORCHDYNAMO_DISABLE": "1",
        }

    def _cache_gib(self) -> int:
        """Room for all requests at full length, within bounds."""
        config = _config(self.model)
        heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 32
        dim = config.get("head_dim") or config.get("hidden_size", 4096) // (
            config.get("num_attention_heads") or 32
        )
        size = 4 if self._serving.dtype == "float32" else 2
        token = 2 * size * heads * dim * config.get("num_hidden_layers", 32)
        whole = token * self._serving.context * self._serving.max_concurrent
        return max(1, min(_MOST_CACHE_GIB, -(-whole // _GIB)))


def python_of(environment: Path, device: str) -> Path:
    """vLLM's Python.

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
    if made_for != device:
        raise MissingPart(
            f"the vLLM at {environment} is built for the {made_for}, and [serving] device is "
            f"{device}: `{bring}`"
        )
    return python


def rank_room(max_rank: int) -> int:
    """The smallest rank of vLLM's that `max_rank` fits into.

    Raises:
        UsageError: none does.
    """
    room = next((rank for rank in _RANKS if rank >= max_rank), None)
    if room is None:
        raise UsageError(f"[serving] max_rank is {max_rank}; vLLM takes up to {_RANKS[-1]}")
    return room


def _template(model: Path) -> str:
    file = model / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    try:
        return str(json.loads((model / "tokenizer_config.json").read_bytes())["chat_template"])
    except (OSError, ValueError, KeyError):
        return ""


def _config(model: Path) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise EngineError(f"the model in {model} cannot be read: {error}") from error
    return found


def _inherited() -> dict[str, str]:
    """Our environment without what is meant for our own Python, or would steer vLLM unseen."""
    ours = ("PYTHON", "VIRTUAL_ENV", "FLYWHEEL_", "VLLM_", "PREFECT_", "MLFLOW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
