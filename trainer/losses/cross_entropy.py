"""Cross-entropy: the negative log likelihood of the tokens that should have been said.

    L = - Σ_t w_t · log p_θ(y_t | y_<t)

Maximum likelihood, as in Bengio et al. 2003, "A Neural Probabilistic Language Model", eq. 5 without
its regulariser; with w_t = 1 on sampled, correct answers it is rejection-sampled fine-tuning, as in
Yuan et al. 2023, "Scaling Relationship on Learning Mathematical Reasoning", section 3.3.
"""

from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.streams import Streams


def cross_entropy(settings: TrainSection) -> Component:
    return Component(_term)


def _term(streams: Streams, settings: TrainSection) -> Term:
    return Term(-(streams.weights * streams.logprobs).sum())
