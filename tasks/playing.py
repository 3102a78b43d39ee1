"""What a chunk's attempts are played with: the interception before the engine, runtimes, a judge.

Enter whose answers are wanted and an environment. Leave, for the time of a block, what
`environments.rollouts` plays episodes with, and grades. Invariant: what was graded while an
episode's runtime lived stays; all else is graded in one batch, over whole groups.
"""

import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flywheel.records import Grade, Problem, Trace
from tasks.turns import home

if TYPE_CHECKING:
    from environments.attempt import Finished
    from environments.define import Environment
    from environments.judges.contract import Judge
    from environments.rollouts import Opens, Sampler
    from environments.runtimes.pool import Pool

AT_ONCE = 32
"""Episodes, and runtimes, of a chunk at a time."""


def opens(
    environment: "Environment", sampler: "Sampler", folder: Path, base: str | None = None
) -> "Opens":
    """Opens what the environment's episodes need; workspaces lie in `folder`.

    `base`: the base model's folder, whose chat template keeps what was sampled over turns.
    """
    from environments.rollouts import Opened

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Opened]:
        from serving.interception import Interception, Served
        from storage.raw import RawStore

        served = Served(
            sampler.url,
            sampler.model,
            key=sampler.key,
            deployment=sampler.deployment,
            tokens=sampler.tokens,
            template_digest=sampler.template_digest,
            tokenizer_digest=sampler.tokenizer_digest,
            base=base,
        )
        async with Interception(served, put=RawStore(home()).put) as recorder:
            yield Opened(recorder, pool_of(environment, folder, AT_ONCE))

    return opened


def pool_of(environment: "Environment", folder: Path, at_once: int) -> "Pool | None":
    """Runtimes of the environment's kind; None where it runs no code. What a process that was
    killed left in the folder goes."""
    shutil.rmtree(folder, ignore_errors=True)
    if environment.runtime is None:
        return None
    from environments.runtimes.pool import Pool

    return Pool(environment.runtime, folder, at_once)


def graded(
    environment: "Environment",
    done: Sequence["Finished"],
    known: Mapping[str, Problem],
    judge: "Judge | None" = None,
) -> list[list[Grade]]:
    """The grades of each attempt, parallel to `done`; all attempts at a problem are its group."""
    from environments.grading import Item, grade_all

    groups: dict[str | None, list[Trace]] = {}
    for one in done:
        groups.setdefault(one.trace.problem_id, []).append(one.trace)
    items = [
        Item(one.trace, known[str(one.trace.problem_id)], groups[one.trace.problem_id], judge=judge)
        for one in done
    ]
    given = grade_all(environment, items)
    return [joined(one.grades, rest) for one, rest in zip(done, given, strict=True)]


def joined(live: Sequence[Grade], rest: Sequence[Grade]) -> list[Grade]:
    """Grades given while the runtime lived stand before those that miss it now."""
    kept = {(one.reward, one.span_id) for one in live}
    return [*live, *(one for one in rest if (one.reward, one.span_id) not in kept)]
