"""The source of visits: rounds, shares, curriculum, and the same visits after a kill."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import UsageError
from flywheel.records import Problem, say
from flywheel.train_section import CurriculumSection
from trainer.orchestrator.contract import Visit
from trainer.orchestrator.source import Pool, Source


def problems(count: int, environment: str = "e") -> list[Problem]:
    return [
        Problem(environment=environment, messages=(say("user", f"{environment} {number}"),))
        for number in range(count)
    ]


def source(*pools: Pool, seed: int = 0, **more: object) -> Source:
    return Source("run", pools or (Pool("e", problems(5)),), seed=seed, **more)  # type: ignore[arg-type]


def taken(one: Source, count: int) -> list[Visit]:
    return list(islice(one, count))


def test_every_problem_comes_once_a_round_in_an_order_of_the_seed() -> None:
    visits = taken(source(), 15)
    rounds = [[visit.problem.id for visit in visits[at : at + 5]] for at in (0, 5, 10)]
    assert all(len(set(one)) == 5 for one in rounds) and len(set(map(tuple, rounds))) > 1
    assert len({visit.id for visit in visits}) == 15
    assert [visit.number for visit in visits] == list(range(15))
    assert taken(source(), 15) == visits != taken(source(seed=1), 15)
    given_backwards = source(Pool("e", problems(5)[::-1]))
    assert [one.id for one in taken(given_backwards, 15)] == [one.id for one in visits]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=4), st.integers(1, 60))
def test_environments_have_their_share_of_any_number_of_visits(
    weights: list[float], count: int
) -> None:
    pools = [Pool(str(at), problems(3, str(at)), weight) for at, weight in enumerate(weights)]
    counts = Counter(visit.environment for visit in taken(source(*pools), count))
    for pool in pools:
        share = count * pool.weight / sum(weights)
        assert abs(counts[pool.environment] - share) < len(pools)


def test_a_curriculum_takes_what_is_neither_too_hard_nor_too_easy_and_never_forgets() -> None:
    items = problems(20)
    # Four are always solved, four never, the others half the time.
    worth = {one.id: [1.0, 0.0, 0.5, 0.5, 0.5][at % 5] for at, one in enumerate(items)}
    band = CurriculumSection(low=0.2, high=0.8, revisit=0.2)
    one = source(Pool("e", items), curriculum=band)
    seen: list[str] = []
    for visit in islice(one, 300):
        seen.append(visit.problem.id)
        one.learnt(visit, worth[visit.problem.id])
    assert set(seen[:20]) == set(worth), "all were tried before any came again"
    outside = [worth[id] != 0.5 for id in seen[20:]]
    assert 0.1 < sum(outside) / len(outside) < 0.3
    assert min(Counter(seen[20:]).values()) >= 4


def test_a_problem_that_became_hard_waits_and_one_that_became_easy_comes_back() -> None:
    first, second = problems(2)
    band = CurriculumSection(low=0.2, high=0.8, revisit=0.0)
    rates = {first.id: 0.5, second.id: 0.0}
    one = source(Pool("e", [first, second], rates=rates), curriculum=band)
    visits = taken(one, 3)
    assert {visit.problem.id for visit in visits} == {first.id}
    for visit in visits:
        one.learnt(visit, 1.0)
    # Nothing is inside any more: all are met in turn, so that the run goes on.
    assert {visit.problem.id for visit in taken(one, 2)} == {first.id, second.id}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_made_anew_it_gives_the_same_visits_whatever_was_learnt_since(data: st.DataObject) -> None:
    import tempfile

    band = CurriculumSection(low=0.3, high=0.7, revisit=0.3)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "visits.jsonl"
        pools = [Pool("a", problems(4, "a"), 2.0), Pool("b", problems(3, "b"))]
        given: list[Visit] = []
        for _ in range(data.draw(st.integers(1, 4))):
            one = source(*pools, curriculum=band, journal=journal)
            assert taken(one, len(given)) == given
            for _ in range(data.draw(st.integers(0, 12))):
                given.append(next(one))
                for visit in data.draw(st.lists(st.sampled_from(given), max_size=2)):
                    one.learnt(visit, data.draw(st.sampled_from([0.0, 0.5, 1.0])))
            if journal.exists() and data.draw(st.booleans()):
                with journal.open("ab") as file:
                    file.write(b'{"after":3,"environ')
        assert taken(source(*pools, curriculum=band, journal=journal), len(given)) == given


def test_learnt_while_old_visits_are_given_again_it_matters_to_later_ones_alone(
    tmp_path: Path,
) -> None:
    band = CurriculumSection(low=0.3, high=0.7)
    journal = tmp_path / "run" / "visits.jsonl"
    one = source(curriculum=band, journal=journal)
    visits = taken(one, 8)
    one.learnt(visits[7], 0.0)
    again = source(curriculum=band, journal=journal)
    first = next(again)
    again.learnt(first, 1.0)
    assert [first, *taken(again, 7)] == visits
    assert taken(source(curriculum=band, journal=journal), 8) == visits


def test_what_cannot_be_visited_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no problems"):
        source(Pool("e", []))
    with pytest.raises(UsageError, match="names of their own"):
        source(Pool("e", problems(1)), Pool("e", problems(2)))
    band, journal = CurriculumSection(), tmp_path / "visits.jsonl"
    source(curriculum=band, journal=journal)
    with pytest.raises(UsageError, match="other problems"):
        source(Pool("e", problems(4)), curriculum=band, journal=journal)
    journal.write_text("nonsense\n")
    with pytest.raises(UsageError, match="not a source's journal"):
        source(curriculum=band, journal=journal)


def test_what_is_learnt_after_a_kill_changes_no_visit_that_was_given_before_it(
    tmp_path: Path,
) -> None:
    band = CurriculumSection(low=0.2, high=0.8, revisit=0.0)

    def begun(number: int) -> Source:
        return source(curriculum=band, journal=tmp_path / "source.jsonl", given=number)

    before = taken(begun(0), 12)
    again = begun(12)
    first = next(again)
    again.learnt(first, 0.0)
    assert [first, *taken(again, 11)] == before
    assert taken(begun(12), 12) == before
