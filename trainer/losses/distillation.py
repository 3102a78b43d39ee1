"""On-policy distillation: the student's own tokens, scored by a teacher.

    L = Σ_t w_t min(π_θ / μ, 2) · sg[log π_θ - log π_T]

The gradient on samples of μ is that of the reverse KL(π_θ‖π_T), token by token with the context
taken as given: Gu et al. 2024, "MiniLLM", eq. 2, without its long-term part; Agarwal et al. 2024,
"On-Policy Distillation of Language Models", with their reverse KL; Lu et al. 2025 (Thinking
Machines), "On-Policy Distillation", where the discount is 0 likewise. Without μ the ratio is to
π_θ itself: the samples are taken to be its own.
"""

from flywheel.train_section import TrainSection
from trainer.losses.contract import Component, Term
from trainer.losses.corrections import BOUNDS
from trainer.losses.ratios import k3, ratio
from trainer.losses.streams import Streams


def distillation(settings: TrainSection) -> Component:
    return Component(_term, needs=("teacher_logprobs",))


def _term(streams: Streams, settings: TrainSection) -> Term:
    teacher, behaviour = streams.teacher_logprobs, streams.behaviour_logprobs
    assert teacher is not None
    now = streams.logprobs.detach()
    gaps = now - teacher
    ratios = ratio(streams.logprobs, now if behaviour is None else behaviour)
    # Past the bound the weight stays and the gradient goes on, as a truncated weight's does.
    held = (BOUNDS["tis"].high / ratios.detach()).clamp(max=1.0)
    stats = {"reverse_kl": gaps.sum(), "reverse_kl_k3": k3(now, teacher).sum()}
    if behaviour is not None:
        stats["mismatch_kl"] = k3(behaviour, now).sum()
    return Term((streams.weights * held * ratios * gaps).sum(), stats)
