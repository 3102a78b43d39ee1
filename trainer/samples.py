"""The trainer's unit: one sequence of tokens and, parallel to it, all that a loss may read.

Algorithms make Samples, the loop packs them, losses read their streams. A Sample is checked when it
is made: what exists is consistent. Nothing here knows how a sample came about.
"""

import math
from hashlib import blake2b
from itertools import compress, count
from typing import Any

from flywheel.errors import BadRecord
from flywheel.records import Experts, Record, Sampling

STREAMS = (
    "behaviour_logprobs",
    "advantages",
    "proximal_logprobs",
    "teacher_logprobs",
    "reference_logprobs",
)
"""The optional streams of numbers, each parallel to token_ids."""


class Picture(Record, frozen=True, kw_only=True):
    """An image, where its placeholder tokens stand in a sample."""

    start: int
    """Of its placeholders, as an index into token_ids."""
    tokens: int
    """How many placeholders it has."""
    data: bytes
    """The encoded file, as it came (PNG, JPEG, WebP)."""


class Sample(Record, frozen=True, kw_only=True):
    row_id: str
    """The dataset's row, or the rollout, that it was made of: what errors name."""
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """Parallel to token_ids. True = trained on as a target. Never true at the first token, which
    nothing predicts."""
    weights: dict[str, tuple[float, ...]]
    """Loss component ("ce", "rl", "ref_kl") -> its weight at each token. 0 = does not count there,
    neither in the component's sum nor in its number of tokens. Read only where mask is true."""
    template_digest: str
    """Of the chat template that the tokens were laid out by."""
    behaviour_logprobs: tuple[float, ...] | None = None
    """Under the policy that sampled, after temperature. None = not sampled, or not given."""
    advantages: tuple[float, ...] | None = None
    proximal_logprobs: tuple[float, ...] | None = None
    teacher_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    policy_versions: tuple[str | None, ...] | None = None
    """The deployment that sampled each token. None at a token = nobody sampled it."""
    sampling: Sampling | None = None
    """How it was sampled. None = it was not, or it is not known."""
    group_id: str | None = None
    """Rollouts of one problem."""
    pair_id: str | None = None
    """Samples that a loss compares: packing never parts them."""
    rollout_id: str | None = None
    trace_id: str | None = None
    pictures: tuple[Picture, ...] = ()
    """In the order of their places."""
    experts: Experts | None = None
    """Taken again when it is trained; where they are not known the trainer's own routers decide.
    None = not recorded."""

    def __post_init__(self) -> None:
        reason = _fault(self)
        if reason:
            raise BadRecord(reason, field=self.row_id)

    @property
    def keys(self) -> tuple[int, ...]:
        """Parallel to token_ids: equal where samples go on equally, so that a placeholder of
        another picture is another key."""
        if not self.pictures:
            return self.token_ids
        keys = list(self.token_ids)
        for one in self.pictures:
            mark = -1 - int.from_bytes(blake2b(one.data, digest_size=8).digest(), "big")
            keys[one.start : one.start + one.tokens] = [mark] * one.tokens
        return tuple(keys)

    @property
    def targets(self) -> tuple[int, ...]:
        """Positions of the trained tokens, ascending."""
        return tuple(compress(count(), self.mask))


def _fault(sample: Sample) -> str | None:
    length = len(sample.token_ids)
    parallel: dict[str, Any] = {"mask": sample.mask, "policy_versions": sample.policy_versions}
    numbers: dict[str, Any] = {name: getattr(sample, name) for name in STREAMS}
    numbers |= {f"weights.{name}": values for name, values in sample.weights.items()}
    for name, values in (parallel | numbers).items():
        if values is not None and len(values) != length:
            return f"{name} has {len(values)} entries for {length} tokens"
    if (own := sample.experts) and len(own.data) != 2 * length * own.layers * own.top_k:
        return f"experts has {len(own.data)} bytes for {length} tokens"
    end = 0
    for one in sample.pictures:
        if not (end <= one.start and one.tokens > 0 and one.start + one.tokens <= length):
            return f"a picture of {one.tokens} tokens cannot stand at {one.start}"
        end = one.start + one.tokens
    if not any(sample.mask):
        return "no token is trained on"
    if sample.mask[0]:
        return "the first token cannot be trained on: nothing predicts it"
    if min(sample.token_ids) < 0:
        return "a token id is negative"
    for name, values in numbers.items():
        if values is not None and not all(map(math.isfinite, values)):
            return f"{name} has a value that is not finite"
    if not any(max(compress(values, sample.mask)) > 0 for values in sample.weights.values()):
        return "no trained token weighs anything in any loss"
    if any(min(values) < 0 for values in sample.weights.values()):
        return "a weight is negative"
    return None
