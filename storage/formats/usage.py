"""Token counts of every vendor's convention, brought to one: totals that include their parts.

OpenAI counts cached tokens inside the prompt, Anthropic beside it; Langfuse takes parts out of
their totals. A stated grand total decides between the two readings, then arithmetic, then the
vendor's names. Counts that are not there, or zero beside an answer, are None with a reason.
"""

from typing import Any

from flywheel.records import Usage

from .parsed import Rest

_CEILING = 1 << 53


def count(value: object) -> int | None:
    """A token count, or None where `value` is no such thing (bool, negative, text, absurd)."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 17:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _CEILING:
        return None
    return value


def settle(counts: dict[str, int | None], *, answered: bool, additive: bool = False) -> Usage:
    """One usage from what was said.

    Args:
        counts: given (the prompt's), output, cached, created (prompt tokens written to a cache),
            reasoning, total. given and output may or may not include their parts.
        answered: whether the call has an answer that is not empty.
        additive: the vendor's convention, where nothing else decides.
    """
    given, output, cached = counts.get("given"), counts.get("output"), counts.get("cached")
    created, reasoning, total = counts.get("created"), counts.get("reasoning"), counts.get("total")
    if given is None and output is None:
        return Usage(reason="not reported")
    if answered and not given and not output:
        return Usage(reason="reported as zero beside an answer")
    beside = (cached or 0) + (created or 0)
    if given is not None and beside and _beside(given, beside, output, reasoning, total, additive):
        given += beside
    if output is not None and reasoning:
        said = total is not None and given is not None
        if reasoning > output or (said and total == (given or 0) + output + reasoning):
            output += reasoning
    reason = None if given is not None and output is not None else "reported in part"
    return Usage(
        input_tokens=given,
        cached_input_tokens=cached,
        cache_write_tokens=created or None,
        output_tokens=output,
        reasoning_tokens=reasoning,
        reason=reason,
    )


def _beside(
    given: int,
    beside: int,
    output: int | None,
    reasoning: int | None,
    total: int | None,
    additive: bool,
) -> bool:
    """Whether cached tokens are counted beside the prompt's, not inside."""
    if beside > given:
        return True
    if total is not None and output is not None:
        outputs = {output, output + (reasoning or 0)}
        if total - given in outputs:
            return False
        if total - given - beside in outputs:
            return True
    return additive


_KNOWN = frozenset(
    (
        "prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
        "completion_tokens_details", "input_tokens", "output_tokens", "input_tokens_details",
        "output_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens", "cost",
    )
)  # fmt: skip
_INPUT_DETAILS = frozenset(("cached_tokens",))
_OUTPUT_DETAILS = frozenset(("reasoning_tokens", "thinking_tokens"))


def read_usage(value: object, answered: bool, rest: Rest, path: str) -> Usage:
    """A usage object in the shape of OpenAI (both APIs) or Anthropic."""
    if not isinstance(value, dict):
        rest.put(path, value)
        return Usage(reason="not reported")
    get = value.get
    given, output = get("prompt_tokens"), get("completion_tokens")
    if _plain(value, given, output):
        return Usage(input_tokens=given, output_tokens=output)
    given, output = count(given), count(output)
    inside = _details(get("prompt_tokens_details", get("input_tokens_details")), rest, path, True)
    within = _details(
        get("completion_tokens_details", get("output_tokens_details")), rest, path, False
    )
    read = count(get("cache_read_input_tokens"))
    total = count(get("total_tokens"))
    usage = settle(
        {
            "given": given if given is not None else count(get("input_tokens")),
            "output": output if output is not None else count(get("output_tokens")),
            "cached": count(inside.get("cached_tokens")) if read is None else read,
            "created": count(get("cache_creation_input_tokens")),
            "reasoning": count(within.get("reasoning_tokens", within.get("thinking_tokens"))),
            "total": total,
        },
        additive=given is None and "cache_read_input_tokens" in value,
        answered=answered,
    )
    rest.put_others(value, _KNOWN, path)
    if total and total != (usage.input_tokens or 0) + (usage.output_tokens or 0):
        rest.put(f"{path}.total_tokens", total)
    return usage


def _plain(value: dict[str, Any], given: object, output: object) -> bool:
    """Whether it is the commonest form: both counts, and perhaps their sum."""
    if type(given) is not int or type(output) is not int:
        return False
    if not (0 < given < _CEILING and 0 < output < _CEILING):
        return False
    return len(value) == 2 or (len(value) == 3 and value.get("total_tokens") == given + output)


def _details(value: object, rest: Rest, path: str, prompt: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    name = "prompt_tokens_details" if prompt else "completion_tokens_details"
    known = _INPUT_DETAILS if prompt else _OUTPUT_DETAILS
    for key in value.keys() - known:
        if value[key]:  # audio, prediction and image counts: zero says nothing
            rest.put(f"{path}.{name}.{key}", value[key])
    return value
