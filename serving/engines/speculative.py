"""How tokens are guessed, in vLLM's words (`--speculative-config`): both engines read them."""

FILE = "speculative.json"
"""Beside weights for which the embedded engine guesses."""
GUESSING = {
    "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2,
}  # fmt: skip
