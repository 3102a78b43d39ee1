"""The model and a user take turns, until the user leaves; the model may call tools meanwhile.

The user is `Environment.user`: by script, or another model (`environments/harnesses/user.py`),
whose calls are no spans with a model call and so never train the model that it talks with.
"""

from environments.harnesses.asking import how, spoken, told
from environments.harnesses.calling import bounded
from environments.harnesses.contract import Conversation, Episode
from environments.harnesses.toolbox import Toolbox
from environments.harnesses.tools import until_answer

LEFT = "answered: the user left"


class Talk:
    def __init__(self, config: Conversation) -> None:
        self.config = config

    async def run(self, episode: Episode) -> None:
        box = Toolbox(episode, episode.environment.tools(episode))
        messages = list(episode.problem.messages)
        if not messages or messages[-1].role in ("system", "developer"):
            opening = await _heard(episode, "")
            if opening is None:
                episode.ended = "the user left without a word"
                return
            messages.append(told(opening))
        while True:
            said = await until_answer(episode, messages, box)
            messages[-1] = spoken(said.message)
            words = await _heard(episode, said.message.text)
            if words is None:
                ended = how(said)
                episode.ended = LEFT if ended == "answered" else ended
                return
            messages.append(told(words))


async def _heard(episode: Episode, said: str) -> str | None:
    """What the user answers; None = the user leaves."""
    arguments = {"episode": episode, "said": said}
    words = await bounded(episode.environment.user, arguments, episode.budget.tool_s, episode.alone)
    if words is not None and not isinstance(words, str):
        raise TypeError(f"user() returned {type(words).__name__}, neither text nor None")
    return words
