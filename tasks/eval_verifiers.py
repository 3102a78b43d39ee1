"""`flywheel eval verifiers:NAME`: an environment of the verifiers package, played and graded there.

Enter a name and configuration. Leaves what `app.evaluation` needs of any environment, for as long
as the package's process lives.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from flywheel.records import Problem
from flywheel.settings import load
from tasks.eval import Playing, Setting, run_of
from tasks.eval_plan import Asked
from tasks.eval_run import Episodes

if TYPE_CHECKING:
    from environments.attempt import Finished
    from environments.verifiers.foreign import Foreign
    from serving.interception import Interception


@contextlib.contextmanager
def foreign(
    name: str, config: dict[str, Any], limit: int | None
) -> Iterator[tuple[Asked, Callable[[Setting], Playing]]]:
    """
    Raises:
        MissingPart: `make install-verifiers` was not run.
        ProjectError: the package has no such environment, or cannot load it.
    """
    from environments.verifiers.child import started
    from environments.verifiers.foreign import Foreign

    with started(load().verifiers.resolve(), name) as child:
        environment = Foreign(name, child, child.open(config), config)
        problems = [environment.problem(one) for one in child.problems(limit)]
        asked = Asked(name, environment.grader, None, problems)
        yield asked, lambda setting: _playing(environment, setting)


def _playing(environment: "Foreign", setting: Setting) -> Playing:
    from environments.episodes import episodes

    @contextlib.asynccontextmanager
    async def playing(recorder: "Interception") -> AsyncIterator[Episodes]:
        async def play(
            attempts: Iterable[tuple[Problem, int]],
        ) -> "AsyncGenerator[Finished, None]":
            found = episodes(environment, attempts, recorder, run_of(setting))
            async with contextlib.aclosing(found):
                async for one in found:
                    yield one._replace(grades=environment.grades(one.trace))

        yield play

    return playing
