"""What answers cost, by both vendors' ways of counting; unknown is None with the reason."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from flywheel.lineage import Deployment
from flywheel.records import Usage
from flywheel.serving_section import PriceSection, ProviderSection
from serving.answer import usage_of
from serving.prices import Price, cost_of, price_of
from serving.providers.anthropic_answer import usage_of as anthropic_usage
from serving.terms import ProjectTerms, Terms
from tests.serving.running import body, running
from tests.serving.scripted_upstream import upstream

PRICE = Price(input=3.0, output=15.0, cached=0.3, cache_write=3.75)
OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 90},
    "completion_tokens_details": {"reasoning_tokens": 12},
}
ANTHROPIC = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 20}


def test_the_same_call_costs_the_same_by_either_vendors_count() -> None:
    one = usage_of(OPENAI, True)
    two = usage_of(anthropic_usage(ANTHROPIC), True)
    assert (one.input_tokens, one.cached_input_tokens) == (100, 90)
    assert (two.input_tokens, two.cached_input_tokens) == (100, 90)
    # 10 fresh, 90 read from the cache, 20 of the answer: reasoning is part of it.
    assert cost_of(one, PRICE)[0] == pytest.approx((10 * 3 + 90 * 0.3 + 20 * 15) / 1e6)
    assert cost_of(two, PRICE) == cost_of(one, PRICE)


def test_what_is_written_to_a_cache_has_its_own_price() -> None:
    said = anthropic_usage({**ANTHROPIC, "cache_creation_input_tokens": 1000})
    usage = usage_of(said, True)
    assert (usage.input_tokens, usage.cache_write_tokens) == (1100, 1000)
    expected = (10 * 3 + 90 * 0.3 + 1000 * 3.75 + 20 * 15) / 1e6
    assert cost_of(usage, PRICE)[0] == pytest.approx(expected)
    plain = Price(input=3.0, output=15.0)
    assert cost_of(usage, plain)[0] == pytest.approx((1100 * 3 + 20 * 15) / 1e6)


@pytest.mark.parametrize(
    ("usage", "why"),
    [
        (Usage(reason="the engine did not say"), "the engine did not say"),
        (Usage(input_tokens=5), "no count"),
        (Usage(input_tokens=5, cached_input_tokens=6, output_tokens=1), "no such count"),
    ],
)
def test_an_unknown_count_is_an_unknown_cost(usage: Usage, why: str) -> None:
    dollars, said = cost_of(usage, PRICE)
    assert dollars is None and said is not None and why in said


def test_a_price_is_the_providers_own_then_that_of_its_model_or_of_what_we_serve() -> None:
    own = {"url": "https://a.example/v1", "model": "big-1"}
    terms = ProjectTerms(
        providers={
            "priced": ProviderSection(**own, price_input=1.0, price_output=2.0),
            "half": ProviderSection(**own, price_input=1.0),
            "other": ProviderSection(url="https://b.example", model="small"),
        },
        prices={
            "big-1": PriceSection(input=5.0, output=6.0),
            "support-v2": PriceSection(input=0.2, output=0.4),
            "support": PriceSection(input=0.1, output=0.1),
        },
    )

    def price(version: int, provider: str | None = None) -> float | str:
        found = price_of(_deployment(version, provider), terms)
        return found if isinstance(found, str) else found.input

    assert [price(2), price(3), price(3, "priced"), price(3, "half")] == [0.2, 0.1, 1.0, 5.0]
    assert price(3, "other") == "no price of small was in [prices] when it was recorded"
    assert "no provider gone" in str(price(3, "gone"))
    assert "support-v2" in str(price_of(_deployment(2, None), ProjectTerms()))


def _deployment(version: int, provider: str | None) -> Deployment:
    return Deployment(
        name=f"support-v{version}",
        project="support",
        version=version,
        base_model="base",
        provider=provider,
        kind="external" if provider else "adapter",
    )


class Priced(Terms):
    def __init__(self, **prices: PriceSection) -> None:
        super().__init__()
        self._by_name = {"support": ProjectTerms(prices=prices)}


def test_each_recorded_call_has_its_cost_or_why_it_has_none(tmp_path: Path) -> None:
    known = Priced(support=PriceSection(input=1e6, output=1e6))
    calls: list[Any] = []
    with upstream() as engine:
        for number, terms in enumerate((known, Priced())):
            with running(tmp_path / str(number), engine.url, terms=terms) as up:
                for streamed in (False, True):
                    answer = httpx.post(
                        up.url + "/v1/chat/completions", content=body(stream=streamed), timeout=20
                    )
                    assert answer.status_code == 200
                calls += [trace.spans[0] for trace in up.traces()]
    for span in calls[:2]:
        usage = span.call.usage
        assert span.call.cost_usd == usage.input_tokens + usage.output_tokens
        assert "cost" not in span.attributes
    for span in calls[2:]:
        assert span.call.cost_usd is None
        assert (
            span.attributes["cost"] == "no price of support-v0 was in [prices] when it was recorded"
        )
