"""The curation rules. To add one: a file beside these, and its line in the table."""

from storage.rules import (
    balance,
    confirmed,
    exact_duplicates,
    fidelity,
    length,
    min_reward,
    per_problem,
)
from storage.rules.rule import Rule

RULES: dict[str, Rule] = {
    "balance": balance.RULE,
    "confirmed": confirmed.RULE,
    "exact_duplicates": exact_duplicates.RULE,
    "fidelity": fidelity.RULE,
    "length": length.RULE,
    "min_reward": min_reward.RULE,
    "per_problem": per_problem.RULE,
}
