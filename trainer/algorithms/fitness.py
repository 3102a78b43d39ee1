"""Whether sampled tokens may be trained on, and with importance ratios: the refusals.

A ratio π(token) / μ(token) is what it says only if μ is the whole distribution, at a known
temperature, of a model with this tokenizer and this chat template. Top-p, top-k, penalties and
grammars sample from another one than the logprobs, or the trainer, know of.
"""

from collections.abc import Sequence
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Sampling
from flywheel.train_section import RLSection
from trainer.paths import Path
from trainer.render import Rendering

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_p": (0,), "typical_p": (1,), "min_tokens": (0,), "frequency_penalty": (0,),
    "presence_penalty": (0,), "repetition_penalty": (1,), "logit_bias": ({},), "bad_words": ([],),
    "allowed_token_ids": (), "logits_processors": ([],), "use_beam_search": (False,),
    "best_of": (1,), "tool_choice": ("auto", "none"), "response_format": ({"type": "text"},),
    "structured_outputs": ({},), "guided_json": (), "guided_regex": (), "guided_choice": (),
    "guided_grammar": (),
}  # fmt: skip
"""Fields of a request that shape or bind what is sampled, and the values that do not; nor does
null."""


def needs_ratios(rl: RLSection) -> bool:
    """Whether what the engine said of its tokens enters the loss."""
    return rl.old_logprobs == "behaviour" or rl.correction != "none"


def check_known(
    ids: Sequence[int], template: str | None, tokenizer: str | None, rendering: Rendering
) -> None:
    """
    Raises:
        BadRecord: these are not ids as this model reads and writes them.
    """
    for what, own, wanted in (
        ("template", template, rendering.template_digest),
        ("tokenizer", tokenizer, rendering.tokenizer_digest),
    ):
        if own != wanted:
            raise BadRecord(f"its tokens come from {what} {own}, the base model has {wanted}")
    if max(ids) >= len(rendering.tokenizer):
        raise BadRecord("has a token id that the tokenizer does not know")
    first = rendering.tokenizer.bos_token_id
    if first is not None and tuple(ids[:2]) == (first, first):
        raise BadRecord("it begins twice: its engine put a second BOS before the template's own")


def check_path(path: Path, rendering: Rendering, longest: int) -> None:
    """
    Raises:
        BadRecord: as `check_known`, or it is longer than a micro-batch.
    """
    check_known(path.token_ids, path.template_digest, path.tokenizer_digest, rendering)
    if len(path.token_ids) > longest:
        raise BadRecord(
            f"it is longer than train.micro_tokens = {longest}: raise that, or lower "
            "rollouts.max_tokens or serving.context"
        )


def check_weighable(path: Path) -> None:
    """
    Raises:
        BadRecord: no importance ratio can be taken to who sampled it.
    """
    trained = (one for one, kept in zip(path.behaviour_logprobs, path.mask, strict=True) if kept)
    if any(one is None for one in trained):
        raise BadRecord("the engine gave no logprobs for what it sampled")
    if path.sampling is None:
        raise BadRecord("its calls were sampled in different ways, and a ratio needs one")
    check_whole(path.sampling)


def check_whole(sampling: Sampling) -> None:
    """
    Raises:
        BadRecord: these settings sample from another distribution than the model's at a
            temperature.
    """
    if sampling.temperature == 0:
        raise BadRecord("it was sampled at temperature 0: a greedy answer has no likelihood")
    for name, value, whole in (
        ("top_p", sampling.top_p, sampling.top_p is None or sampling.top_p >= 1),
        ("top_k", sampling.top_k, sampling.top_k is None or sampling.top_k <= 0),
    ):
        if not whole:
            raise BadRecord(f"it was sampled with {name} {value:g}: ratios need all tokens")
    for name, value in sampling.other.items():
        if name in NEUTRAL and value is not None and value not in NEUTRAL[name]:
            raise BadRecord(f"it was sampled with {name}: ratios need the model's own distribution")
