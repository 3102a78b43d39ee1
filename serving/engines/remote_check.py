"""Whether a server that somebody else runs is a vLLM that can carry a turn.

Each complaint says how to start it instead. Asked once when it is met.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from flywheel import durable
from flywheel.errors import EngineError, UsageError
from serving.engines.client import EngineClient

_NAME = "flywheel-asks-whether-adapters-can-be-loaded"
_NO_RANK = 2**20
"""A rank that nobody makes room for."""
_SAYS_RANK = re.compile(r"max_lora_rank (\d+)")
_COOL = 0.5
"""A temperature at which processed logprobs lie twice as far apart as raw ones."""


def check(client: EngineClient) -> None:
    """
    Raises:
        EngineError: it does not answer.
        UsageError: it is no vLLM, or not started as a turn needs it.
    """
    url = client.url
    if client.status("/health") not in (200, 503):
        raise UsageError(f"{url} (engine_url in [serving]) is no vLLM: it has no /health")
    code, cards = client.cards()
    if code == 401:
        raise UsageError(f"the vLLM at {url} wants a key: set FLYWHEEL_ENGINE_KEY to it")
    if code != 200:
        raise UsageError(f"{url} (engine_url in [serving]) is no vLLM: /v1/models says {code}")
    if not any(card.get("owned_by") == "vllm" for card in cards):
        raise UsageError(f"{url} (engine_url in [serving]) serves models and is no vLLM")
    if "base" not in [card.get("id") for card in cards]:
        names = ", ".join(str(card.get("id")) for card in cards)
        raise UsageError(
            f"the vLLM at {url} serves {names}: start it with --served-model-name base"
        )
    _check_answers(client)


def takes_adapters(client: EngineClient) -> bool:
    """Whether adapters can be loaded while it runs."""
    return client.has_route("/v1/load_lora_adapter", {"lora_name": _NAME, "lora_path": ""})


def room(client: EngineClient, place: Path) -> int | None:
    """Largest rank of an adapter that it takes: it says so as it refuses one of a larger rank.

    Args:
        place: where a folder for that is written. None is returned where it does not see the same
            files, or says it in other words.

    Raises:
        EngineError: it does not answer.
    """
    config = {"peft_type": "LORA", "r": _NO_RANK, "lora_alpha": 1, "target_modules": ["q_proj"]}
    durable.write(place / "adapter_config.json", msgspec.json.encode(config))
    body = {"lora_name": _NAME, "lora_path": str(place.resolve())}
    said = _SAYS_RANK.search(client.refusal("/v1/load_lora_adapter", body))
    return int(said[1]) if said else None


def _check_answers(client: EngineClient) -> None:
    try:
        _check_shape(client)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{client.url} (engine_url in [serving]) is no vLLM: its chat answers in another shape"
        ) from error


def _check_shape(client: EngineClient) -> None:
    said = _answer(client, temperature=1.0)
    choice = said["choices"][0]
    if not choice.get("token_ids") or not said.get("prompt_token_ids"):
        raise UsageError(
            f"the vLLM at {client.url} gives no token ids: nothing that it answers could be "
            "trained on. It needs the version that locks/vllm.txt names, or a newer one"
        )
    content = (choice.get("logprobs") or {}).get("content")
    if not content:
        raise UsageError(f"the vLLM at {client.url} gives no logprobs: start it without a limit")
    warm, cool = _spread(said), _spread(_answer(client, temperature=_COOL))
    if warm and abs(cool - warm) < abs(cool - warm / _COOL):
        raise UsageError(
            f"the vLLM at {client.url} gives logprobs from before the temperature, which are not "
            "those that tokens were drawn with: start it with --logprobs-mode processed_logprobs"
        )


def _answer(client: EngineClient, temperature: float) -> dict[str, Any]:
    try:
        return client.chat(
            "base",
            [{"role": "user", "content": "1 2 3"}],
            max_tokens=1,
            temperature=temperature,
            logprobs=True,
            top_logprobs=5,
            return_token_ids=True,
        )
    except EngineError as error:
        raise UsageError(f"the vLLM at {client.url} refuses what a turn asks: {error}") from error


def _spread(answer: dict[str, Any]) -> float:
    """How far apart the two likeliest tokens lie. More than two are asked for: the drawn one may
    take the place of another."""
    top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    found = sorted((float(one["logprob"]) for one in top), reverse=True)
    return found[0] - found[1] if len(found) > 1 else 0.0
