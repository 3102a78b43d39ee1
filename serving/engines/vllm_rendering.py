"""Whether a vLLM puts messages into the ids that the trainer does; its own route says it."""

from serving.engines.client import EngineClient
from serving.engines.rendering import CONVERSATIONS, Rendered


def differs(client: EngineClient, ours: Rendered) -> str | None:
    """On which conversation vLLM and the trainer differ; None = on none that are compared.

    Raises:
        EngineError: it did not answer.
    """
    for name, (messages, tools) in CONVERSATIONS.items():
        theirs = client.tokenized("base", messages, tools)
        if theirs != list(ours.ids[name]):
            at = next(
                (
                    place
                    for place, (one, other) in enumerate(zip(theirs, ours.ids[name], strict=False))
                    if one != other
                ),
                min(len(theirs), len(ours.ids[name])),
            )
            return (
                f"vLLM puts {name} into other tokens than the trainer, from the {at + 1}th on: its "
                "chat template is another one"
            )
    return None
