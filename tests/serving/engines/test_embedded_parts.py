"""The engine's parts in one process: text while it arrives, gangs that gather, caches, budgets."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from serving.engines.embedded_requests import GangId
from serving.engines.embedded_text import Speller
from serving.refusal import ApiError
from trainer.models import load_base, load_tokenizer

TINY = Path(__file__).resolve().parents[2] / "sorting" / "base"
T = TypeVar("T")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(TINY).backend_tokenizer


def spelled(tokenizer: Any, text: str, stops: tuple[str, ...] = ()) -> tuple[str, list[str], bool]:
    speller = Speller(tokenizer, stops, skip_special=False)
    pieces = []
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        done = speller.push(token)
        pieces.append(speller.take())
        if done:
            break
    pieces.append(speller.finish())
    return speller.text, pieces, speller.stopped


@pytest.mark.parametrize("text", ["3 1 2", "Grüße, 世界 👩‍🔧!", " leading", "", "a\nb\n\n"])
def test_pieces_put_together_are_the_text(tokenizer: Any, text: str) -> None:
    whole, pieces, stopped = spelled(tokenizer, text)
    assert whole == "".join(pieces) == text and not stopped
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [(("lo w",), "hel"), (("zz", "wor"), "hello "), (("d", "l"), "he"), (("世",), None)],
)
def test_text_ends_before_the_first_stop_string_and_shows_nothing_of_it(
    tokenizer: Any, stops: tuple[str, ...], expected: str | None
) -> None:
    whole, pieces, stopped = spelled(tokenizer, "hello world", stops)
    assert whole == "".join(pieces) == (expected if expected is not None else "hello world")
    assert stopped == (expected is not None)


def test_a_cut_character_is_shown_as_such_at_the_end(tokenizer: Any) -> None:
    ids = tokenizer.encode("1 世", add_special_tokens=False).ids
    speller = Speller(tokenizer, skip_special=False)
    for token in ids[:-1]:
        speller.push(token)
    assert speller.take() == "1 "
    assert speller.finish() == tokenizer.decode(ids[:-1], skip_special_tokens=False)[2:]


def row(prompt: tuple[int, ...], seed: int = 0, most: int = 20, adapter: str = "base") -> Any:
    from serving.engines.embedded_batch import Row
    from serving.engines.embedded_choose import Choosing, generator

    said: list[Any] = []
    made = Row(
        adapter=adapter,
        prompt=prompt,
        choosing=Choosing(),
        generator=generator(seed, 0),
        max_tokens=most,
        stop_ids=frozenset(),
        deliver=lambda drawn, finish: said.append((drawn, finish)),
        seed=seed,
    )
    made.said = said
    return made


def test_a_gang_that_stays_incomplete_fails_and_says_how_many_came() -> None:
    from serving.engines.embedded_gangs import Gangs

    first, second = row((1,)), row((2,))

    async def gather() -> None:
        gangs = Gangs(0.05, lambda rows: pytest.fail("it was not whole"))
        gangs.join(GangId("g", 3), [first])
        gangs.join(GangId("g", 3), [second])
        with pytest.raises(ApiError, match="not 2"):
            gangs.join(GangId("g", 2), [row((3,))])
        while not second.said:
            await asyncio.sleep(0.01)
        assert gangs.waiting == 0

    asyncio.run(gather())
    assert first.said == second.said == [(None, "gang g: 2 of 3 came within 0.05 s")]


def test_one_who_left_a_gang_before_it_was_whole_leaves_a_place() -> None:
    from serving.engines.embedded_gangs import Gangs

    dispatched: list[Any] = []

    async def gather() -> None:
        gangs = Gangs(5, dispatched.extend)
        gone, first, second = [row((1,))], [row((1,))], [row((2,))]
        gangs.join(GangId("g", 2), gone)
        gangs.leave(GangId("g", 2), gone)
        gangs.join(GangId("g", 2), first)
        assert not dispatched
        gangs.join(GangId("g", 2), second)
        assert dispatched == [*first, *second]

    asyncio.run(gather())


@pytest.fixture(scope="module")
def model() -> Any:
    from serving.engines.embedded_model import Model

    return Model(load_base(TINY, threads=1))


def drive(work: Generator[None, None, T]) -> T:
    import torch

    with torch.inference_mode():
        while True:
            try:
                next(work)
            except StopIteration as done:
                value: T = done.value
                return value


def ids_of(row: Any) -> list[int]:
    assert row.said[-1][1] == "length"
    return [drawn.id for drawn, _ in row.said]


def live(model: Any, rows: list[Any], memory: int = 2**26, most: int = 64) -> Any:
    from serving.engines.embedded_cache import Prefixes
    from serving.engines.embedded_cohort import Bounds, Cohort

    cohort = Cohort(model, "base", Prefixes(4096), Bounds(memory=memory, rows=most))
    cohort.waiting.extend(rows)
    drive(cohort.run())
    assert not cohort.rows and not cohort.waiting
    return cohort


@pytest.mark.slow
def test_a_small_budget_sends_rows_back_to_wait_and_changes_no_answer(model: Any) -> None:
    prompts = [tuple(range(30 + i, 50 + 2 * i)) for i in range(12)]
    free = [row(prompt, seed=i, most=60) for i, prompt in enumerate(prompts)]
    live(model, free)
    for tokens, most in ((250, 64), (90, 64), (1, 64), (4096, 2)):
        memory = tokens * model.shape.bytes_per_token * 8 // 3
        tight = [row(prompt, seed=i, most=60) for i, prompt in enumerate(prompts)]
        live(model, tight, memory, most)
        assert [ids_of(one) for one in tight] == [ids_of(one) for one in free]


@pytest.mark.slow
def test_long_prompts_in_chunks_say_what_whole_ones_say(model: Any) -> None:
    """Longer than a chunk, beside short ones, with a shared beginning and without."""
    import torch

    from serving.engines.embedded_batch import CHUNK

    long = tuple(20 + i % 200 for i in range(CHUNK + 77))
    rows = [row(long, 1, 4), row(long[:9], 2, 4), row((*long, 5), 3, 4), row((*long, 6, 7), 4, 4)]
    live(model, rows)
    plain = load_base(TINY, threads=1).model
    for one in rows:
        ids = ids_of(one)
        with torch.inference_mode():
            logits = plain(torch.tensor([[*one.prompt, *ids]])).logits[0, len(one.prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
        assert [drawn.logprob for drawn, _ in one.said] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_gang_is_cut_into_batches_by_its_rows_alone(model: Any) -> None:
    from serving.engines.embedded_cache import Prefixes
    from serving.engines.embedded_cohort import Bounds, run_gang

    def gang(prefixes: Prefixes, backwards: bool) -> list[Any]:
        made = [row((*range(40, 90), 100 + i // 4), seed=i) for i in range(16)]
        bounds = Bounds(memory=2 * 100 * model.shape.bytes_per_token)
        drive(run_gang(model, "base", made[::-1] if backwards else made, prefixes, bounds))
        return [[(drawn.id, drawn.logprob) for drawn, _ in one.said] for one in made]

    kept = Prefixes(1000)
    first = gang(kept, backwards=False)
    assert kept.tokens > 0
    assert gang(kept, backwards=True) == first == gang(Prefixes(0), backwards=True)


def test_prefixes_are_kept_per_adapter_and_the_oldest_leaves_first() -> None:
    from serving.engines.embedded_cache import Prefixes, Segment

    prefixes = Prefixes(budget=100)
    prompts = [(*range(60), i) for i in (1, 2, 3)]
    assert [prefixes.worth_keeping("a", prompt) for prompt in prompts[:2]] == [None, None]
    ids = prefixes.worth_keeping("a", prompts[2])
    assert ids == tuple(range(60))
    prefixes.put("a", Segment(ids, (), ()))
    assert prefixes.longest("b", prompts[0]) is None
    found = prefixes.longest("a", prompts[0])
    assert found is not None and found.ids == ids
    assert prefixes.longest("a", ids) is None, "a prompt needs a token of its own"
    prefixes.put("b", Segment(tuple(range(70)), (), ()))
    assert prefixes.longest("a", prompts[0]) is None and prefixes.tokens == 70
    prefixes.put("b", Segment(tuple(range(500)), (), ()))
    assert prefixes.tokens == 70
    prefixes.forget("b")
    assert prefixes.tokens == 0


def test_a_token_without_probability_is_never_drawn() -> None:
    import torch

    from serving.engines.embedded_choose import Choosing, draw, generator

    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]).repeat(400, 1)
    drawn = draw(logits, [Choosing()] * 400, [generator(seed, 0) for seed in range(400)])
    counts = {token: sum(one.id == token for one in drawn) for token in (1, 3)}
    assert sum(counts.values()) == 400
    assert 0.2 < counts[1] / 400 < 0.34, "the chance of token 1 is 0.269"
