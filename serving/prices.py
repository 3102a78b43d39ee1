"""What an answer cost: the engine's or vendor's count of tokens, at the project's prices.

Enters a usage in the records' one convention (cached and written prompt tokens are part of the
prompt's, reasoning is part of the answer's: both vendors' counts are turned into it as they are
read); leaves dollars, or why they are not known. Invariant: unknown is None, never 0.
"""

from flywheel.lineage import Deployment
from flywheel.records import Record, Usage
from serving.terms import ProjectTerms

_MILLION = 1e6


class Price(Record, frozen=True, kw_only=True):
    """Dollars a million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of prompt tokens read from a cache; None = as `input`."""
    cache_write: float | None = None
    """Of prompt tokens written to one; None = as `input`."""


def price_of(deployment: Deployment, terms: ProjectTerms) -> Price | str:
    """Its price, or why none is known: a provider's own, then [prices] by the model's name; for
    what we serve ourselves [prices] by the deployment's name, then by the project's."""
    names = [deployment.name, deployment.project]
    if deployment.provider is not None:
        section = terms.providers.get(deployment.provider)
        if section is None:
            return f"no provider {deployment.provider} in the project's file"
        if section.price_input is not None and section.price_output is not None:
            return Price(
                input=section.price_input,
                output=section.price_output,
                cached=section.price_cached,
                cache_write=section.price_cache_write,
            )
        names = [section.model]
    for name in names:
        if (found := terms.prices.get(name)) is not None:
            return Price(
                input=found.input,
                output=found.output,
                cached=found.cached,
                cache_write=found.cache_write,
            )
    return f"no price of {names[0]} was in [prices] when it was recorded"


def cost_of(usage: Usage, price: Price | str) -> tuple[float | None, str | None]:
    """Dollars, else why they are not known. What is not said to be cached was not."""
    if isinstance(price, str):
        return None, price
    if usage.input_tokens is None or usage.output_tokens is None:
        return None, f"no count of its tokens: {usage.reason or 'not said'}"
    cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    fresh = usage.input_tokens - cached - written
    if fresh < 0:
        return None, f"{cached + written} cached tokens of {usage.input_tokens}: no such count"
    dollars = (
        fresh * price.input
        + cached * (price.input if price.cached is None else price.cached)
        + written * (price.input if price.cache_write is None else price.cache_write)
        + usage.output_tokens * price.output
    ) / _MILLION
    return dollars, None
