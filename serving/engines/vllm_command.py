"""What vLLM is started with: its arguments and its environment variables.

docs/decisions/vllm.md says why each stands here.
"""

import json
from pathlib import Path

from flywheel.errors import EngineError, UsageError
from flywheel.serving_section import ServingSection
from serving.engines.adapter_files import linear_modules
from serving.engines.presets import Arguments, Role, spelled
from serving.engines.speculative import GUESSING

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Those that vLLM makes room for."""
_STEP = 1024
"""Tokens that one step on the CPU computes, at most."""
_GIB = 2**30
_MOST_CACHE_GIB = 2
_SMOL = "named SmolLM, trained by Hugging Face"
_HERE = Path(__file__).resolve().parent


def flags(model: Path, serving: ServingSection, role: Role | None = None) -> list[str]:
    """The arguments after host and port; a preset's own go before ours where both have one.

    Raises:
        UsageError: [serving] asks for what vLLM cannot do.
    """
    chosen = role.arguments if role is not None else {}
    return spelled({**_model(model, serving), **_room(serving), **_device(serving), **chosen})


def _model(model: Path, serving: ServingSection) -> Arguments:
    """What a preset may not change."""
    smol = _SMOL in _template(model)
    return {
        "model": str(model),
        "served-model-name": "base",
        "dtype": serving.dtype,
        "max-model-len": serving.context,
        # Its default, raw, is before temperature: not what the tokens were drawn from.
        "logprobs-mode": "processed_logprobs",
        # Sampling that a request does not name is OpenAI's, not the model folder's.
        "generation-config": "vllm",
        "enable-lora": True,
        "max-lora-rank": rank_room(serving.max_rank),
        # Without the output head: adapted, it ends the engine when prompts are scored in a batch.
        "lora-target-modules": [*linear_modules(model)],
        "enable-auto-tool-choice": True,
        "tool-call-parser": "flywheel_smollm2" if smol else "hermes",
        **({"tool-parser-plugin": str(_HERE / "vllm_tool_parser.py")} if smol else {}),
        **({"chat-template": str(_HERE / "smollm2.jinja")} if smol else {}),
    }


def _room(serving: ServingSection) -> Arguments:
    return {
        "max-loras": serving.adapters,
        # Beyond them it would read one from its folder again.
        "max-cpu-loras": 2 * serving.adapters,
        "enable-prefix-caching": True,
        "enable-prompt-tokens-details": True,
        "max-num-seqs": _most(serving),
        **({"speculative-config": dict(GUESSING)} if serving.speculate else {}),
        "disable-uvicorn-access-log": True,
        "uvicorn-log-level": "warning",
    }


def _device(serving: ServingSection) -> Arguments:
    if serving.device == "gpu":
        return {"gpu-memory-utilization": serving.gpu_memory}
    return {
        "enforce-eager": True,
        # A prompt that is split over two steps ends the CPU engine, where its request has a seed.
        "enable-chunked-prefill": False,
        # Steps of seconds, not minutes: answers under way wait for each.
        "max-num-batched-tokens": max(_STEP, _most(serving), serving.context),
    }


def _most(serving: ServingSection) -> int:
    return max(64, serving.max_concurrent)


def variables(
    model: Path,
    serving: ServingSection,
    *,
    key: str,
    threads: int,
    place: Path,
    role: Role | None = None,
) -> dict[str, str]:
    """Environment variables, ours before a preset's; `place` is where its caches lie."""
    common = {
        **(role.environment if role is not None else {}),
        "VLLM_API_KEY": key,
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
    if serving.device == "gpu":
        return common
    return {
        **common,
        "VLLM_CPU_KVCACHE_SPACE": str(_cache_gib(model, serving)),
        # Pinned to cores of its choice it would fight with the trainer for the same ones.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_ARENA_MAX": "2",
        # Small helpers would be compiled by C++ amid the first request, for half a minute.
        "TORCHDYNAMO_DISABLE": "1",
        # A step that takes longer ends the engine; beside other work one may.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600",
    }


def rank_room(max_rank: int) -> int:
    """The smallest rank of vLLM's that `max_rank` fits into.

    Raises:
        UsageError: none does.
    """
    room = next((rank for rank in _RANKS if rank >= max_rank), None)
    if room is None:
        raise UsageError(f"[serving] max_rank is {max_rank}; vLLM takes up to {_RANKS[-1]}")
    return room


def _cache_gib(model: Path, serving: ServingSection) -> int:
    """Room for all requests at full length, within bounds."""
    config = _config(model)
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 32
    dim = config.get("head_dim") or config.get("hidden_size", 4096) // (
        config.get("num_attention_heads") or 32
    )
    size = 4 if serving.dtype == "float32" else 2
    token = 2 * size * heads * dim * config.get("num_hidden_layers", 32)
    whole = token * serving.context * serving.max_concurrent
    return max(1, min(_MOST_CACHE_GIB, -(-whole // _GIB)))


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
