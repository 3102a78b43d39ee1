"""Reference KL: what holds the policy to the weights that the run started from.

    L = Σ_t w_t sg[min(π_θ / μ, 2)] · ½ (log π_θ - log π_ref)²

On samples of π_θ its gradient is that of KL(π_θ‖π_ref): k2 of Schulman 2020, "Approximating KL
Divergence". GRPO's k3 estimates the same value, but as a loss its gradient is another divergence's
(Tang and Munos 2025, "On a few pitfalls in KL divergence gradient estimation for RL");
so k3 is what is told, and k2 is what is trained. The weight takes samples of an older policy for
what they are, truncated as in `trainer.losses.corrections`; without μ it is 1.
"""

from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.corrections import BOUNDS
from trainer.losses.ratios import k3, ratio
from trainer.losses.streams import Streams


def reference_kl(settings: TrainSection) -> Component:
    return Component(_term, needs=("reference_logprobs",))


def _term(streams: Streams, settings: TrainSection) -> Term:
    reference, behaviour = streams.reference_logprobs, streams.behaviour_logprobs
    assert reference is not None
    now = streams.logprobs.detach()
    squares = 0.5 * (streams.logprobs - reference).square()
    weights = streams.weights
    if behaviour is not None:
        weights = weights * ratio(now, behaviour).clamp(max=BOUNDS["tis"].high)
    return Term((weights * squares).sum(), {"kl": k3(now, reference).sum()})
