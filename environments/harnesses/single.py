"""The problem's messages, one answer."""

from environments.harnesses.asking import ask, how
from environments.harnesses.contract import Episode, Single


class OneAnswer:
    def __init__(self, config: Single) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        problem = episode.problem
        episode.ended = how(await ask(episode, problem.messages, tools=problem.tools))
