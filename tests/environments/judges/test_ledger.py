"""The ledger of verdicts and budget: shared by processes, never overdrawn, bounded."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from environments.judges.contract import Judged
from environments.judges.judge import ModelJudge
from environments.judges.ledger import Bounds, Hold, Ledger
from flywheel.errors import CorruptFile
from flywheel.home import Home
from tests.environments.judges.conftest import Opens
from tests.environments.judges.scripted_judge import Endpoint

_forked = multiprocessing.get_context("fork")
DAY = 86_400.0


class Clock:
    def __init__(self, now: float = 1000 * DAY + 60) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def held(ledger: Ledger, bounds: Bounds, usd: float = 0.0, tokens: int = 0) -> Hold:
    found = ledger.reserve("shop", bounds, usd, tokens, 60)
    assert isinstance(found, Hold), found
    return found


def test_reservations_and_what_was_spent_never_pass_the_budget(tmp_path: Path) -> None:
    clock = Clock()
    ledger, bounds = Ledger(tmp_path / "j.sqlite", clock=clock), Bounds(usd=1.0)
    first, second = held(ledger, bounds, 0.5), held(ledger, bounds, 0.5)
    assert ledger.reserve("shop", bounds, 0.01, 0, 60) == "1 dollars a day"
    ledger.settle(first, 0.1, 50)
    ledger.release(second)
    third = held(ledger, bounds, 0.9)
    assert ledger.reserve("other", bounds, 0.9, 0, 60) != "1 dollars a day"  # its own budget
    ledger.settle(third, None, None)  # not known: as much as was reserved
    spent = ledger.spent("shop")
    assert (spent.calls, spent.tokens, spent.unknown, spent.held) == (2, 50, 1, 0)
    assert spent.usd == pytest.approx(1.0)
    clock.now += DAY
    assert ledger.spent("shop").calls == 0 and held(ledger, bounds, 1.0)


def test_calls_and_tokens_are_bounded_where_no_price_is_known(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "j.sqlite")
    held(ledger, Bounds(tokens=100), tokens=60)
    assert ledger.reserve("shop", Bounds(tokens=100), 0, 41, 60) == "100 tokens a day"
    assert ledger.reserve("shop", Bounds(calls=1), 0, 0, 60) == "1 calls a day"
    assert ledger.reserve("shop", Bounds(calls=0), 0, 0, 60) == "0 calls a day"


def test_a_reservation_of_a_process_that_died_ends_and_is_counted_as_lost(tmp_path: Path) -> None:
    clock = Clock()
    ledger, bounds = Ledger(tmp_path / "j.sqlite", clock=clock), Bounds(usd=1.0)

    def dies() -> None:
        held(ledger, bounds, 1.0, 500)
        os.kill(os.getpid(), signal.SIGKILL)

    child = _forked.Process(target=dies)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert ledger.reserve("shop", bounds, 0.1, 0, 60) == "1 dollars a day"
    clock.now += 61
    late = held(ledger, bounds, 0.4)
    spent = ledger.spent("shop")
    assert (spent.calls, spent.lost, spent.unknown, spent.usd) == (1, 1, 1, 0.0)
    clock.now += 61
    ledger.spent("shop")
    ledger.settle(late, 0.3, 10)  # after all: it only took long
    assert ledger.spent("shop")[:5] == (2, 10, 0.3, 1, 1)


def test_verdicts_are_bounded(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "j.sqlite", keep=3)
    for number in range(6):
        ledger.put(f"{number}", b"%d" % number)
    assert [ledger.get(f"{number}") for number in range(6)] == [None] * 3 + [b"3", b"4", b"5"]


def test_a_damaged_file_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"no database at all, and long enough to be looked at" * 9)
    with pytest.raises(CorruptFile, match="move it away"):
        Ledger(tmp_path / "j.sqlite").get("x")


# --- with a judge -------------------------------------------------------------------------------


def all_of(judge: ModelJudge, name: str, count: int) -> list[Judged]:
    async def together() -> list[Judged]:
        return await asyncio.gather(*(judge.score("r", f"{name} {n}") for n in range(count)))

    return asyncio.run(together())


def in_process(judge: ModelJudge, name: str, count: int, out: Any) -> None:
    out.put([said.value for said in all_of(judge, name, count)])


def test_a_budget_that_ends_amid_a_batch_makes_the_rest_null(
    judge: Opens, endpoint: Endpoint
) -> None:
    said = all_of(judge(budget_calls=3), "answer", 8)
    assert len(endpoint.asked) == 3
    assert [one.value for one in said].count(None) == 5
    reasons = {one.reason for one in said if one.value is None}
    assert reasons == {"no verdict: the judge's budget of 3 calls a day is spent"}
    assert all(one.cost_usd == 0.0 for one in said if one.value is None)


def test_parallel_calls_do_not_overshoot_a_budget_in_dollars(
    judge: Opens, endpoint: Endpoint
) -> None:
    # One question reserves what its prompt has in bytes, and 512 tokens of answer.
    endpoint.usage = {"prompt_tokens": 400, "completion_tokens": 512}
    priced = judge(price_in=1.0, price_out=1.0, budget_usd=0.006, at_once=64)
    said = all_of(priced, "answer", 12)
    given = [one for one in said if one.value is not None]
    assert 1 <= len(given) < 12
    assert sum(one.cost_usd or 0 for one in given) <= 0.006
    assert priced.ledger and priced.ledger.spent("shop").usd <= 0.006


def test_two_processes_share_one_budget(judge: Opens, endpoint: Endpoint, tmp_path: Path) -> None:
    limited, out = judge(budget_calls=6), _forked.Queue()
    children = [
        _forked.Process(target=in_process, args=(limited, name, 6, out)) for name in ("a", "b")
    ]
    for child in children:
        child.start()
    values = [value for _ in children for value in out.get(timeout=60)]
    for child in children:
        child.join(60)
    assert len(endpoint.asked) == 6 and values.count(0.75) == 6 and values.count(None) == 6
    spent = Ledger(Home(tmp_path).judge).spent("shop")
    assert (spent.calls, spent.held, spent.lost) == (6, 0, 0)


def test_a_new_ledger_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    def opens(number: int) -> None:
        Ledger(tmp_path / "j.sqlite").put(str(number), b"x")

    children = [_forked.Process(target=opens, args=(number,)) for number in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "j.sqlite")) as database:
        assert database.execute("SELECT count(*) FROM verdicts").fetchone() == (6,)


def test_unknown_usage_counts_as_what_was_reserved(judge: Opens, endpoint: Endpoint) -> None:
    priced = {"price_in": 1.0, "price_out": 1.0, "budget_usd": 1.0}
    for number, usage in enumerate((None, {"prompt_tokens": 0, "completion_tokens": 0}), start=1):
        endpoint.usage = usage
        mine = judge(**priced)
        assert all_of(mine, f"said {usage}", 1)[0].cost_usd is None
        spent = mine.ledger and mine.ledger.spent("shop")
        assert spent and spent.unknown == number and spent.usd > 0
