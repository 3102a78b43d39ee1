"""Which of several engines gets a request."""

from collections import Counter

import pytest

from flywheel.errors import EngineError
from serving.replicas import Replicas

URLS = ("http://a", "http://b", "http://c", "http://d")


def prefixes(count: int) -> list[bytes]:
    return [f"conversation {number}".encode() for number in range(count)]


def placed(replicas: Replicas, asked: list[bytes]) -> dict[bytes, str]:
    found = {}
    for prefix in asked:
        found[prefix] = replicas.take(prefix)
        replicas.give_back(found[prefix])
    return found


def test_a_prefix_stays_where_it_is_cached_and_all_get_some() -> None:
    replicas = Replicas()
    replicas.become(URLS)
    found = placed(replicas, prefixes(400))
    assert placed(replicas, prefixes(400)) == found
    assert all(60 < count < 140 for count in Counter(found.values()).values())


def test_one_that_goes_away_moves_only_what_it_had() -> None:
    replicas = Replicas()
    replicas.become(URLS)
    before = placed(replicas, prefixes(200))
    replicas.become(URLS[:3])
    after = placed(replicas, prefixes(200))
    assert {p for p in before if before[p] != after[p]} == {
        p for p, url in before.items() if url == "http://d"
    }


def test_no_replica_has_more_than_its_bounded_share_though_all_begin_alike() -> None:
    replicas = Replicas()
    replicas.become(URLS)
    loads = Counter(replicas.take(b"one system prompt for all") for _ in range(80))
    assert sum(loads.values()) == 80 and max(loads.values()) <= 26  # ceil(1.25 * 80 / 4) + 1


def test_without_a_prefix_the_least_loaded_answers() -> None:
    replicas = Replicas()
    replicas.become(URLS)
    assert Counter(replicas.take() for _ in range(8)) == dict.fromkeys(URLS, 2)


def test_one_that_could_not_be_reached_gets_nothing_until_its_pause_is_over() -> None:
    now = [0.0]
    replicas = Replicas(clock=lambda: now[0])
    replicas.become(URLS[:2])
    replicas.lost("http://a")
    assert set(placed(replicas, prefixes(40)).values()) == {"http://b"}
    now[0] = 0.6
    assert set(placed(replicas, prefixes(40)).values()) == {"http://a", "http://b"}
    replicas.lost("http://a")
    now[0] = 1.5  # its second pause is twice as long
    assert set(placed(replicas, prefixes(40)).values()) == {"http://b"}
    replicas.lost("http://b")
    assert set(placed(replicas, prefixes(40)).values()) == {"http://a", "http://b"}


def test_where_none_is_there_it_says_so() -> None:
    with pytest.raises(EngineError, match="no engine"):
        Replicas().take()
