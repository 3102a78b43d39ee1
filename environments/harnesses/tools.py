"""A loop: the model calls the environment's tools until it answers.

A call that is wrong is answered with what is wrong, and the model may try again.
"""

from environments.harnesses.asking import Said, ask, how
from environments.harnesses.contract import Episode, Tools
from environments.harnesses.toolbox import Toolbox
from flywheel.records import Message


class ToolLoop:
    def __init__(self, config: Tools) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        tools = episode.environment.tools(episode)
        box = Toolbox(episode, tools, parallel=self.config.parallel)
        episode.ended = how(await until_answer(episode, list(episode.problem.messages), box))


async def until_answer(episode: Episode, messages: list[Message], box: Toolbox) -> Said:
    """The first answer without a call; `messages` grow by all that is said."""
    offered = box.schemas or episode.problem.tools
    while True:
        said = await ask(episode, messages, tools=offered)
        messages.append(said.message)
        if not said.calls:
            return said
        messages += await box.answer(said)
