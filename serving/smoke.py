"""Real prompts through an engine's chat route, as a client would send them.

Enter: prompts with the ids that the trainer makes of them. Leaves: what was seen, or `Refused`.
Scoring reads no cached prefix and knows no template; answering does both. So what an engine says of
tokens while it answers must be what it says of them when it is asked to score them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from flywheel.errors import Refused
from serving.engines.client import EngineClient
from serving.verify import FLOAT32, complaint_of_place


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    ids: tuple[int, ...]
    """As the trainer renders it."""


def smoke(
    client: EngineClient,
    model: str,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 32,
    tolerance: float = FLOAT32.largest,
) -> dict[str, Any]:
    """Asks each of `prompts` greedily; returns what was seen.

    Raises:
        Refused: an answer without a token, with a count that is wrong, to another prompt than the
            trainer's, or whose logprobs are not those of the model that scores them.
        EngineError: it could not be asked.
    """
    finished, tokens, largest = 0, 0, 0.0
    for number, prompt in enumerate(prompts, 1):
        asked = {"tools": list(prompt.tools)} if prompt.tools else {}
        answer = client.chat(
            model,
            prompt.messages,
            temperature=0.0,
            max_tokens=max_tokens,
            logprobs=True,
            return_token_ids=True,
            **asked,
        )
        ids, logprobs = _second_stream(model, answer)
        why = complaint_of_place(answer["prompt_token_ids"], prompt.ids)
        if why is not None:
            raise Refused(f"{model} puts prompt {number} into other tokens than the trainer: {why}")
        scored = client.logprobs(model, prompt.ids, ids)
        apart = [abs(one - other) for one, other in zip(logprobs, scored, strict=True)]
        if not max(apart) <= tolerance:
            raise Refused(
                f"{model} says other logprobs while it answers prompt {number} than when it scores "
                f"the same tokens: {max(apart):.3g} apart, allowed are {tolerance:.3g}. Cached "
                "prefixes of other weights do that: load weights under a new name"
            )
        largest = max(largest, *apart)
        tokens += len(ids)
        finished += answer["choices"][0]["finish_reason"] != "length"
    return {"prompts": len(prompts), "finished": finished, "tokens": tokens, "largest": largest}


def _second_stream(model: str, answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    choice, counted = answer["choices"][0], answer["usage"]["completion_tokens"]
    ids = choice.get("token_ids") or []
    content = (choice.get("logprobs") or {}).get("content") or []
    if not ids or not answer.get("prompt_token_ids"):
        raise Refused(f"{model} answers without token ids: nothing it says could be trained on")
    if not counted == len(ids) == len(content):
        raise Refused(
            f"{model} answered {len(ids)} tokens with {len(content)} logprobs and said {counted}"
        )
    return ids, [float(token["logprob"]) for token in content]
