import math
import random

import pytest

from flywheel.lineage import Deployment
from serving.choosing import choose, place_of
from serving.routing import ProjectRoute, base_deployment


def a_route(share: float, challenger: str | None = "p-v7") -> ProjectRoute:
    other = challenger and Deployment(
        name=challenger, project="p", version=7, base_model="tiny", adapter="runs/r/adapter"
    )
    return ProjectRoute(
        project="p",
        base_model="tiny",
        champion=base_deployment("p", "tiny"),
        challenger=other or None,
        share=share,
    )


def test_without_a_challenger_or_a_share_the_champion_answers_for_certain() -> None:
    for route in (a_route(0.0), a_route(0.5, None)):
        assert choose(route, "c") == choose(route, None) == (route.champion, 1.0)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("sticky", [True, False])
def test_the_challenger_gets_its_share_and_each_choice_says_its_probability(
    share: float, sticky: bool
) -> None:
    route, count = a_route(share), 20_000
    random.seed(5)
    chosen = [choose(route, f"conversation-{k}" if sticky else None) for k in range(count)]
    took = sum(one.deployment == route.challenger for one in chosen)
    deviation = math.sqrt(count * share * (1 - share))
    assert abs(took - share * count) < 4.5 * deviation + 1
    for one in chosen:
        expected = share if one.deployment == route.challenger else 1 - share
        assert one.probability == pytest.approx(expected)


def test_a_conversation_stays_with_whom_it_got() -> None:
    route = a_route(0.3)
    for k in range(200):
        first = choose(route, f"c{k}")
        assert all(choose(route, f"c{k}") == first for _ in range(5))


def test_a_greater_share_only_adds_conversations() -> None:
    shares = [0.01, 0.1, 0.25, 0.5, 0.99]
    for k in range(500):
        got = [choose(a_route(share), f"c{k}").deployment.version == 7 for share in shares]
        assert got == sorted(got), f"c{k} was taken away from the challenger again"


def test_another_challenger_deals_anew() -> None:
    names = [f"c{k}" for k in range(2000)]
    first = {one for one in names if place_of(one, "p-v7") < 0.1}
    second = {one for one in names if place_of(one, "p-v8") < 0.1}
    assert len(first & second) < 60, "the same people would always be the ones tried on"


def test_any_id_has_a_place() -> None:
    for odd in ("", "\0", "ü" * 500, "\ud83d", "p-v7"):
        assert 0 <= place_of(odd, "p-v7") < 1
