"""The curation rules. To add one: a file beside these, and its line in the table."""

from storage.rules import (
    agreement,
    balance,
    confirmed,
    corrections_first,
    difficulty,
    exact_duplicates,
    fidelity,
    freshness,
    label_noise,
    language,
    length,
    min_reward,
    near_duplicates,
    per_problem,
    rehearsal,
    self_training,
)
from storage.rules.rule import Rule

RULES: dict[str, Rule] = {
    "agreement": agreement.RULE,
    "balance": balance.RULE,
    "confirmed": confirmed.RULE,
    "corrections_first": corrections_first.RULE,
    "difficulty": difficulty.RULE,
    "exact_duplicates": exact_duplicates.RULE,
    "fidelity": fidelity.RULE,
    "freshness": freshness.RULE,
    "label_noise": label_noise.RULE,
    "language": language.RULE,
    "length": length.RULE,
    "min_reward": min_reward.RULE,
    "near_duplicates": near_duplicates.RULE,
    "per_problem": per_problem.RULE,
    "rehearsal": rehearsal.RULE,
    "self_training": self_training.RULE,
}
