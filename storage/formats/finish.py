"""Why an answer ended: every vendor's word for it as one of `flywheel.records.Choice`'s.

A word that is not known here is kept as it came; "" and other types are none.
"""

_WORDS = {
    "stop": ("end_turn", "stop_sequence", "STOP", "completed", "end", "eos", "stop_str"),
    "length": (
        "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_context_window_exceeded",
        "token_limit",
    ),
    "tool_calls": ("tool_use", "tool_call", "tool-calls", "TOOL_CALLS"),
    "content_filter": (
        "content-filter", "refusal", "SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII",
        "guardrail_intervened", "content_filtered",
    ),
}  # fmt: skip
_SAID = {word: ours for ours, words in _WORDS.items() for word in words}


def finish_reason(value: object) -> str | None:
    """None = it was not said."""
    if not isinstance(value, str) or not value:
        return None
    return _SAID.get(value, value)
