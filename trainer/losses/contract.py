"""What a loss component is: streams of one micro-batch enter, the sum of its terms leaves.

A component is pure. It divides by nothing but what is inside one of its units: the reducer divides
by how many units the whole optimizer step has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from flywheel.train_section import TrainSection
from trainer.losses.streams import Streams

if TYPE_CHECKING:
    import torch

    from trainer.samples import Sample

Unit = Literal["token", "sequence", "pair"]
"""What a component's sum is the mean of. A sequence is a Sample."""


class Term(NamedTuple):
    """What a component says of one micro-batch. A stat "NAME|OTHER" is a sum over those that stat
    OTHER counts, and in the end a mean over them alone."""

    total: "torch.Tensor"
    """Scalar: the sum over its units, with the gradient."""
    stats: "Mapping[str, torch.Tensor]" = {}  # noqa: RUF012
    """Name -> sum over its tokens; no gradient."""
    unit_stats: "Mapping[str, torch.Tensor]" = {}  # noqa: RUF012
    """Name -> sum over its units; no gradient."""


class Component(NamedTuple):
    term: Callable[[Streams, TrainSection], Term]
    per: Unit = "token"
    needs: tuple[str, ...] = ()
    """Streams without which it refuses."""
    counted: "Callable[[Sequence[Sample]], Mapping[str, float]] | None" = None
    """From the step's samples that weigh something in it to sums that it needs of the whole step
    (`Streams.whole`), each additive over samples; one named `units` is its number of units."""
    needs_of: "Callable[[Sample], tuple[str, ...]] | None" = None
    """What one sample must have beyond `needs` before it is counted."""
