import random

import polars as pl
import pytest

from storage.shifts import CHANCE, shifts


def frame(size: int, seed: int, *, longer: float = 0.0, slices: str = "abc") -> pl.DataFrame:
    drawn = random.Random(seed)
    return pl.DataFrame(
        {
            "prompt_tokens": [round(drawn.lognormvariate(5 + longer, 0.5)) for _ in range(size)],
            "reward": [float(drawn.random() < 0.7) for _ in range(size)],
            "slice": [drawn.choice(slices) for _ in range(size)],
            "source": [f"rollout:{seed}"] * size,
        }
    )


def test_measures_are_those_of_their_definitions() -> None:
    before, after = pl.DataFrame({"slice": ["a"] * 3 + ["b"]}), pl.DataFrame({"slice": ["a", "b"]})
    (one,) = shifts(before, after)
    # Shares with half a row more a bin: 3.5/5, 1.5/5 and 1/2, 1/2.
    assert one.psi == pytest.approx(0.16946, abs=1e-5)
    # Of 3/4, 1/4 and 1/2, 1/2 against their mean 5/8, 3/8.
    assert one.js == pytest.approx(0.04879, abs=1e-5)
    assert [(bin.name, bin.before, bin.after) for bin in one.bins] == [
        ("a", 0.75, 0.5), ("b", 0.25, 0.5),
    ]  # fmt: skip
    numbers = (pl.DataFrame({"reward": [0.0, 0.0, 1.0]}), pl.DataFrame({"reward": [0.0, 1.0, 1.0]}))
    (one,) = shifts(*numbers)
    assert one.ks == pytest.approx(1 / 3)
    # Chi-squared of one degree of freedom at 0.999 is 10.83; the cube comes within 4%.
    assert CHANCE == 0.001 and one.chance == pytest.approx(10.83 * 2 / 3, rel=0.04)


def test_samples_of_one_distribution_do_not_drift_however_few() -> None:
    told = [
        shift.column
        for size in (8, 30, 200)
        for seed in range(30)
        for shift in shifts(frame(size, seed), frame(size, 1000 + seed))
        if shift.beyond(0.25)
    ]
    assert told == []


def test_what_drifted_is_told_and_the_rest_is_not() -> None:
    found = shifts(frame(400, 1), frame(400, 2, longer=0.5, slices="abcd"))
    assert [one.column for one in found if one.beyond(0.25)] == ["prompt_tokens", "slice"]
    assert all(sum(bin.after for bin in one.bins) == pytest.approx(1) for one in found)


def test_what_one_side_does_not_know_is_compared_with_nothing() -> None:
    before = frame(20, 1).with_columns(language=pl.lit(None, pl.String))
    after = frame(20, 2).with_columns(language=pl.lit("en"))
    language = shifts(before, after)[-1]
    assert (language.psi, language.reason) == (None, "the earlier dataset does not say it")
    assert not language.beyond(0.0)
    assert shifts(after, before)[-1].reason == "the new dataset does not say it"
    assert shifts(before, before)[-1].reason == "neither dataset says it"
    partly = after.with_columns(prompt_tokens=pl.Series([None] * 10 + [100] * 10, dtype=pl.Int64))
    assert shifts(before, partly)[0].bins[-1].name == "unknown"
