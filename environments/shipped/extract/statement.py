"""Financial statements made from a seed: tables, notes, and the figures that they really state.

Enter: a number and a seed. Leave: the statement's text, what is asked, the true figures in whole
currency units, and the trap in it. Invariant: the truth follows from the text alone, the tables add
up, and statement n of a seed is the same however many are made.

Traps: `units` (thousands or millions, costs told as negatives in brackets), `loss` (a negative
result), `restated` (last year's figures were corrected, and both stand there), `notes` (one figure
only in a note, in other units), `mixed` (all of them), `plain` (none: whole units, plain numbers).
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

TRAPS = ("plain", "units", "loss", "restated", "notes", "mixed")
FIELDS = (
    "revenue",
    "cost_of_sales",
    "operating_profit",
    "net_profit",
    "total_assets",
    "equity",
    "prior_revenue",
    "capital_expenditure",
)
UNITS = {1: "", 1000: "thousands", 1_000_000: "millions"}
_COMPANIES = (
    "Alder Mills",
    "Borealis Tools",
    "Cobalt Foods",
    "Dune Freight",
    "Ember Glass",
    "Fjord Cable",
)
_FORMS = ("plc", "AG", "Inc.", "S.A.")
_MONEY = ("EUR", "USD", "GBP", "CHF")
_WIDTH = 34


class Statement(NamedTuple):
    trap: str
    text: str
    currency: str
    year: int
    unit: int
    """What the tables' numbers are multiples of."""
    truth: dict[str, int]
    """In whole currency units, by `FIELDS`; costs and spending are positive."""
    mistakes: dict[str, dict[str, int]]
    """What one gets who falls for a trap, by the trap; the same where there is nothing to fall for
    is left out."""


class _Year(NamedTuple):
    """In the unit of the tables."""

    revenue: int
    cost: int
    admin: int
    interest: int
    tax: int
    assets: int
    debt: int

    @property
    def operating(self) -> int:
        return self.revenue - self.cost - self.admin

    @property
    def net(self) -> int:
        return self.operating - self.interest - self.tax


def statements(count: int, seed: int) -> Iterator[Statement]:
    for number in range(count):
        yield statement(TRAPS[number % len(TRAPS)], random.Random(f"extract {seed} {number}"))


def statement(trap: str, draw: random.Random) -> Statement:
    def has(one: str) -> bool:
        return trap in (one, "mixed")

    unit = draw.choice((1000, 1_000_000)) if has("units") else 1
    year = draw.randint(2019, 2026)
    now, before = _year(draw, unit, has("loss")), _year(draw, unit, False)
    corrected = draw.randint(2, 9) * before.revenue // 100 + 1 if has("restated") else 0
    capex = draw.randint(20, 400) * now.revenue // 4000 + 1
    currency = draw.choice(_MONEY)
    name = f"{draw.choice(_COMPANIES)} {draw.choice(_FORMS)}"
    text = "\n".join(
        [
            f"{name}: annual report {year}",
            "",
            *_tables(now, before, year, corrected, _measure(currency, unit), has("units")),
            "",
            "Notes",
            *_notes(capex, unit, corrected, before, year, currency, has("notes")),
        ]
    )
    true = {
        "revenue": now.revenue, "cost_of_sales": now.cost, "operating_profit": now.operating,
        "net_profit": now.net, "total_assets": now.assets, "equity": now.assets - now.debt,
        "prior_revenue": before.revenue - corrected, "capital_expenditure": capex,
    }  # fmt: skip
    truth = {field: value * unit for field, value in true.items()}
    return Statement(
        trap, text, currency, year, unit, truth, _mistakes(truth, unit, before, corrected)
    )


def _year(draw: random.Random, unit: int, loss: bool) -> _Year:
    size = {1: 4_000_000, 1000: 90_000, 1_000_000: 7_000}[unit]
    revenue = draw.randint(size // 4, size)
    share = draw.randint(45, 70)
    cost = revenue * share // 100
    admin = revenue * (draw.randint(102, 125) - share if loss else draw.randint(8, 20)) // 100
    assets = revenue * draw.randint(80, 220) // 100
    return _Year(
        revenue=revenue,
        cost=cost,
        admin=admin,
        interest=revenue * draw.randint(1, 3) // 100,
        tax=0 if loss else revenue * draw.randint(1, 4) // 100,
        assets=assets,
        debt=assets * draw.randint(30, 75) // 100,
    )


def _measure(currency: str, unit: int) -> str:
    return f"in {UNITS[unit]} of {currency}" if unit > 1 else f"in {currency}"


def _tables(
    now: _Year, before: _Year, year: int, corrected: int, measure: str, brackets: bool
) -> Iterator[str]:
    """Last year twice where it was corrected: what the columns are called tells which is which."""
    restated = before._replace(revenue=before.revenue - corrected)
    columns = [(str(year), now), (str(year - 1), restated)]
    if corrected:
        columns = [
            (str(year), now),
            (f"{year - 1} restated", restated),
            (f"{year - 1} as reported", before),
        ]
    cost = -1 if brackets else 1
    yield f"Income statement ({measure})"
    yield _row("", [head for head, _ in columns])
    for label, values in (
        ("Revenue", [one.revenue for _, one in columns]),
        ("Cost of sales", [cost * one.cost for _, one in columns]),
        ("Administrative expenses", [cost * one.admin for _, one in columns]),
        ("Operating profit (loss)", [one.operating for _, one in columns]),
        ("Finance costs", [cost * one.interest for _, one in columns]),
        ("Income tax", [cost * one.tax for _, one in columns]),
        ("Profit (loss) for the year", [one.net for _, one in columns]),
    ):
        yield _row(label, [_figure(value) for value in values])
    yield ""
    yield f"Balance sheet at 31 December ({measure})"
    yield _row("", [head for head, _ in columns[:2]])
    for label, values in (
        ("Total assets", [now.assets, before.assets]),
        ("Total liabilities", [now.debt, before.debt]),
        ("Total equity", [now.assets - now.debt, before.assets - before.debt]),
    ):
        yield _row(label, [_figure(value) for value in values])


def _notes(
    capex: int, unit: int, corrected: int, before: _Year, year: int, currency: str, elsewhere: bool
) -> Iterator[str]:
    spent = (
        f"{currency} {capex * unit:,}" if elsewhere else f"{capex:,} ({_measure(currency, unit)})"
    )
    yield f"1. Capital expenditure of the year was {spent}; the year before it was less."
    if corrected:
        yield (
            f"2. A contract was counted twice in {year - 1}. Revenue of that year is restated from "
            f"{_figure(before.revenue)} to {_figure(before.revenue - corrected)} "
            f"({_measure(currency, unit)})."
        )
    else:
        yield "2. The accounting policies are those of the year before."


def _row(label: str, cells: list[str]) -> str:
    return f"{label:<{_WIDTH}}" + "".join(f"{cell:>20}" for cell in cells)


def _figure(value: int) -> str:
    """Thousands by commas; negatives in brackets."""
    return f"({-value:,})" if value < 0 else f"{value:,}"


def _mistakes(
    truth: dict[str, int], unit: int, before: _Year, corrected: int
) -> dict[str, dict[str, int]]:
    found = {
        "units": {field: value // unit for field, value in truth.items()},
        "signs": truth | {"net_profit": -truth["net_profit"]},
        "costs": truth | {"cost_of_sales": -truth["cost_of_sales"]},
        "years": truth | {"revenue": truth["prior_revenue"]},
    }
    if corrected:
        found["restated"] = truth | {"prior_revenue": before.revenue * unit}
    return {trap: figures for trap, figures in found.items() if figures != truth}
