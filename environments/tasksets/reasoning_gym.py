"""Problems made by reasoning-gym's generators, or rows that name the generator they came from.

Enter: names of generators with their settings, and the set's seed. Leave: problems that carry how
to make them again: {"generator", "config", "seed", "index"}, which is all that the generator's own
verifier needs (`score`). Where a generator states no answer, the problem has none; it is graded all
the same.
"""

import difflib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from environments.tasksets.contract import Drawn, Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import Row, shaped
from flywheel.errors import BadRecord, MissingPart, ProjectError
from flywheel.ids import canonical

MAX_ITEMS = 100_000
"""Of one generator."""
NO_ANSWER = "the generator states no answer; its verifier judges without one"
FIELDS = ("task", "seed", "index", "question", "answer")


class ReasoningGym(Options):
    tasks: Mapping[str, Mapping[str, Any]] = {}
    """Generator -> its settings, such as {"basic_arithmetic": {"max_terms": 4}}."""
    items: int = 50
    """Of each generator, at most `MAX_ITEMS`."""


def read(source: Source) -> Drawn:
    if source.tasks.path:
        yield from shaped(_fit)(source)
        return
    options: ReasoningGym = source.options
    if not options.tasks:
        raise ProjectError('options.tasks names no generator: {"basic_arithmetic": {}}')
    items = min(options.items, MAX_ITEMS)
    for name, settings in options.tasks.items():
        for index in range(items):
            made = {"generator": name, "config": dict(settings), "index": index}
            yield _problem({**made, "seed": source.tasks.seed}, source)


def _problem(recipe: dict[str, Any], source: Source) -> Given:
    entry = entry_of(recipe)
    answer = entry["answer"]
    return Given(
        problem(
            source,
            prompt_of(entry["question"], "question", source.options.system),
            None if answer is None else str(answer),
            why_none=NO_ANSWER,
            slice=recipe["generator"],
            attributes={"recipe": recipe},
        )
    )


def _fit(row: Row, source: Source) -> Given:
    """A row that an earlier run wrote; it must come out of its generator as it stands."""
    value = row.value
    name = require(value, "task", str, "a generator's name")
    recipe = {"generator": name, "config": value.get("config") or {}}
    recipe |= {key: require(value, key, int, "a whole number") for key in ("seed", "index")}
    given = _problem(recipe, source)
    if value.get("question") != entry_of(recipe)["question"]:
        raise BadRecord("is not what this version's generator makes", field="question")
    return given._replace(side=row.side)


def score(answer: str, recipe: Mapping[str, Any]) -> float:
    """What the generator's own verifier says of an answer, 0 to 1, partial credit included."""
    entry = entry_of(recipe)
    return float(_generator(*_key(recipe)).score_answer(answer, entry))


def entry_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The item of a recipe, made again."""
    entry: dict[str, Any] = _generator(*_key(recipe))[recipe["index"]]
    return entry


def _key(recipe: Mapping[str, Any]) -> tuple[str, bytes, int]:
    return recipe["generator"], canonical(recipe["config"]), recipe["seed"]


@lru_cache(maxsize=256)
def _generator(name: str, config: bytes, seed: int) -> Any:
    """
    Raises:
        MissingPart: reasoning-gym is not installed.
        ProjectError: no such generator, or settings that it does not take.
    """
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingPart(
            f"reasoning-gym is not here ({error}): `make install-reasoning` brings it"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f": {', '.join(sorted(DATASETS))}"
        raise ProjectError(f"reasoning-gym has no generator {name!r}{hint}")
    made, settings = DATASETS[name]
    given = {**msgspec.json.decode(config), "seed": seed, "size": MAX_ITEMS}
    known = sorted(settings.__dataclass_fields__)
    for key in given.keys() - known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise ProjectError(f"{name} takes no {key!r}; {hint}")
    try:
        wanted = settings(**given)
        wanted.validate()
        return made(wanted)
    except (AssertionError, TypeError, ValueError) as error:
        raise ProjectError(f"settings of {name} do not fit: {error or type(error)}") from error


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and all(name in row for name in FIELDS)


READER = Reader(ReasoningGym, recognises, read)
