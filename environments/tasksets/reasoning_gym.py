"""Problems made by reasoning-gym's generators, or rows that name the generator they came from.

Enter: names of generators with their settings, and the set's seed. Leave: problems that carry their
item whole (`attributes["entry"]`), which is all that the generator's own verifier needs (`score`).
Where a generator states no answer, the problem has none; it is graded all the same.
"""

import difflib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field

from environments.tasksets.contract import Drawn, Given, Options, Reader, Source
from environments.tasksets.fields import problem, require
from environments.tasksets.messages import prompt_of
from environments.tasksets.rows import Row, shaped
from flywheel.errors import BadRecord, MissingPart, ProjectError
from flywheel.ids import canonical, seed_of
from flywheel.records import Problem

NO_ANSWER = "the generator states no answer; its verifier judges without one"
FIELDS = ("task", "seed", "index", "question", "answer")
UNSTEADY = ("isomorphic_strings", "polynomial_multiplication", "ransom_note")
"""They draw from sets of strings, so that each process of Python gets other items for one seed."""


class ReasoningGym(Options):
    tasks: Mapping[str, Mapping[str, Any]] = {}
    """Generator -> its settings, such as {"basic_arithmetic": {"max_terms": 4}}."""
    items: int = Field(50, ge=1, le=100_000)
    """Of each generator."""


def read(source: Source) -> Drawn:
    if source.tasks.path:
        yield from shaped(_fit)(source)
        return
    options: ReasoningGym = source.options
    if not options.tasks:
        raise ProjectError('options.tasks names no generator: {"basic_arithmetic": {}}')
    for name, settings in options.tasks.items():
        if name in UNSTEADY:
            raise ProjectError(f"{name} makes other problems of one seed each time: leave it out")
        # Item n of a seed is item n - 1 of the next one, so the seeds of sets must lie far apart.
        seed = seed_of("reasoning_gym", name, source.tasks.seed)
        for index in range(options.items):
            try:
                yield _problem(name, settings, seed, index, source)
            except BadRecord as bad:
                yield bad


def _problem(
    name: str, settings: Mapping[str, Any], seed: int, index: int, source: Source
) -> Given:
    entry = _entry(name, settings, seed, index)
    answer = entry["answer"]
    recipe = {"generator": name, "settings": dict(settings), "seed": seed, "index": index}
    return Given(
        problem(
            source,
            prompt_of(entry["question"], "question", source.options.system),
            None if answer is None else str(answer),
            why_none=NO_ANSWER,
            slice=name,
            attributes={"recipe": recipe, "entry": entry},
        )
    )


def _fit(row: Row, source: Source) -> Given:
    """A row that an earlier run wrote; its generator must make the same of it."""
    name = require(row.value, "task", str, "a generator's name")
    seed, index = (require(row.value, key, int, "a whole number") for key in ("seed", "index"))
    settings = row.value.get("config") or {}
    if not isinstance(settings, dict):
        raise BadRecord(f"is {type(settings).__name__}: the generator's settings", field="config")
    try:
        given = _problem(name, settings, seed, index, source)
    except ProjectError as error:
        raise BadRecord(str(error), field="task") from error
    if row.value.get("question") != given.problem.attributes["entry"]["question"]:
        reason = "is not what the generator makes here: another version, or one of no fixed seed"
        raise BadRecord(reason, field="question")
    return given._replace(side=row.side)


def score(answer: str, problem: Problem) -> float:
    """What the generator's own verifier says of an answer, 0 to 1, partial credit included."""
    recipe = problem.attributes["recipe"]
    generator = _generator(recipe["generator"], canonical(recipe["settings"]), recipe["seed"])
    return float(generator.score_answer(answer, problem.attributes["entry"]))


def _entry(name: str, settings: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
    """The item as JSON keeps it, {"question", "answer", "metadata"}.

    Raises:
        BadRecord: the generator has no such item, or none that is JSON.
    """
    try:
        made = _generator(name, canonical(settings), seed)[index]
        entry: dict[str, Any] = json.loads(json.dumps(made))
    except (LookupError, TypeError, ValueError) as error:
        raise BadRecord(f"no item {index} of {name}: {error}; ask for fewer (items)") from error
    return {key: entry.get(key) for key in ("question", "answer", "metadata")}


@lru_cache(maxsize=256)
def _generator(name: str, settings: bytes, seed: int) -> Any:
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
    made, config = DATASETS[name]
    given = {**msgspec.json.decode(settings), "seed": seed}
    known = sorted(config.__dataclass_fields__)
    for key in given.keys() - known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
        raise ProjectError(f"{name} takes no {key!r}; {hint}")
    try:
        return made(config(**given))
    except (AssertionError, TypeError, ValueError) as error:
        raise ProjectError(f"settings of {name} do not fit: {error or type(error)}") from error


def recognises(_: Path, row: Mapping[str, Any] | None) -> bool:
    return row is not None and all(name in row for name in FIELDS)


READER = Reader(ReasoningGym, recognises, read)
