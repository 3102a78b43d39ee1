"""Accounts: every call that was paid for once, sums beside what they are over."""

from typing import Any

import msgspec
import pytest

from app.commands.usage_ import _dollars
from flywheel.errors import UsageError
from flywheel.home import Home
from flywheel.records import Trace, Usage
from storage.committer import commit
from storage.inbox import Inbox
from storage.usage import usage
from tests.app.calling import call
from tests.storage.store_parts import spoken

DAY = 86_400 * 10**9
AT = 1_796_000_000 * 10**9 - 1_796_000_000 * 10**9 % DAY


def called(number: int, *, day: int = 0, key: str | None = None, **fields: Any) -> Trace:
    """A call of the gateway; `fields` are its model call's."""
    source = {name: fields.pop(name) for name in ("project", "source") if name in fields}
    attributes = fields.pop("attributes", {})
    error = fields.pop("error", None)
    trace = spoken(f"e{number}", question="the same", start=AT + day * DAY + number, **source)
    (span,) = trace.spans
    assert span.call is not None
    changed = msgspec.structs.replace(
        span,
        call=msgspec.structs.replace(span.call, **fields),
        error=error,
        attributes={**attributes, **({"key": key} if key else {})},
    )
    return msgspec.structs.replace(trace, spans=(changed,))


@pytest.fixture
def filled(home: Home) -> Home:
    cached = Usage(
        input_tokens=100, cached_input_tokens=60, cache_write_tokens=30, output_tokens=10
    )
    traces = [
        called(1, deployment="shop-v1", cost_usd=0.5, key="web"),
        called(2, deployment="shop-v1", cost_usd=0.25, key="web", usage=cached),
        called(3, deployment="shop-v2", day=1, attributes={"cost": "no price of shop-v2"}),
        called(4, deployment="shop-v2", day=1, error="cut", choices=(), usage=Usage(reason="no")),
        called(5, project="other", deployment="other-v0", cost_usd=1.0, key="batch"),
        called(6, source="import:x", deployment="shop-v1", cost_usd=9.0),
        called(7, project="other", source="shadow", deployment="other-v1", key="batch"),
    ]
    Inbox(home).append(traces)
    commit(home)
    return home


def test_a_sum_says_over_how_many_calls_it_is_and_why_some_are_missing(filled: Home) -> None:
    other, shop = usage(filled, ["project"])
    assert (other.group, other.calls, other.priced, other.cost_usd, other.partial) == (
        {"project": "other"}, 2, 1, 1.0, True,
    )  # fmt: skip
    assert (shop.calls, shop.failed, shop.counted, shop.priced) == (4, 1, 3, 2)
    assert (shop.input_tokens, shop.output_tokens) == (10 + 100 + 10, 3 + 10 + 3)
    assert (shop.cached_input_tokens, shop.cache_write_tokens) == (60, 30)
    assert (shop.cost_usd, shop.partial, shop.why) == (0.75, True, "no price of shop-v2")
    assert shop.reasoning_tokens is None


def test_it_goes_by_key_deployment_and_day_alone_or_together(filled: Home) -> None:
    by_key = {one.group["key"]: one.calls for one in usage(filled, ["key"])}
    assert by_key == {"batch": 1, "web": 2, None: 3}
    pairs = [(*one.group.values(), one.calls) for one in usage(filled, ["day", "deployment"])]
    assert pairs == [
        ("2026-11-30", "other-v0", 1), ("2026-11-30", "other-v1", 1),
        ("2026-11-30", "shop-v1", 2), ("2026-12-01", "shop-v2", 2),
    ]  # fmt: skip
    unpriced = usage(filled, ["deployment"])[-1]
    assert (unpriced.cost_usd, unpriced.priced) == (None, 0)
    with pytest.raises(UsageError, match="not by colour"):
        usage(filled, ["colour"])  # type: ignore[list-item]


def test_it_is_of_one_project_and_a_stretch_of_time_where_that_is_asked(filled: Home) -> None:
    (one,) = usage(filled, [], project="shop", since=AT + DAY)
    assert (one.group, one.calls) == ({}, 2)
    (before,) = usage(filled, [], until=AT + DAY)
    assert before.calls == 4
    assert usage(filled, [], project="nobody") == []


def test_a_home_without_calls_has_no_usage(home: Home) -> None:
    assert usage(home, ["project"]) == []


def test_the_command_prints_a_table_and_what_is_missing_from_it(filled: Home) -> None:
    said = call("usage", "--by", "project", "--by", "deployment", home=filled.root).out
    assert "shop-v1" in said and "0.7500" in said
    assert "+  part of the cost is not known: no price of shop-v2" in said
    assert "the tokens of 1 of 6 calls are not known" in said
    found = call("usage", "--project", "shop", "--since", "2026-12-01", "--json", home=filled.root)
    nobody = call("usage", "--project", "zzz", home=filled.root)
    assert nobody.code == 2 and "no project zzz is known here; there is other, shop" in nobody.err
    (only,) = found.object()["usage"]
    assert (only["calls"], only["group"]) == (2, {"project": "shop"})


def test_a_sum_that_is_small_is_not_none() -> None:
    assert [_dollars(cost) for cost in (0.0, 0.00004, 1234.5)] == [
        "0.0000",
        "<0.0001",
        "1,234.5000",
    ]
