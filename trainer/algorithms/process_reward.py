"""A process reward model: a reward model (`reward`) whose rows are single steps.

Each row is one model call of an episode with all that came before it, and its label what the step
was worth (Lightman et al. 2023, arXiv 2305.20050, with one verdict a step). Which rows there are is
curation's; how a verdict is learnt and asked for is the same.
"""

from trainer.algorithms.reward import reward as process_reward

__all__ = ["process_reward"]
