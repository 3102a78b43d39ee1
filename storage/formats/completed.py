"""What a chat completion's response object says of a call, apart from what was answered.

Agents keep it beside each of their own messages. What enters is the object; what leaves are the
arguments of `Episode.answer`.
"""

from typing import Any

from flywheel.records import Message

from .finish import finish_reason
from .messages import answered
from .nested import fields_of
from .parsed import Rest
from .times import nanoseconds
from .usage import read_usage

_RESPONSE = frozenset(("id", "created", "model", "object", "choices", "usage"))
_CHOICE = frozenset(("finish_reason", "index", "message"))


def completed(response: object, message: Message, rest: Rest, path: str) -> dict[str, Any]:
    """Usage, finish reason, model and time; the response's id stands among `rest`."""
    said = fields_of(response)
    found: dict[str, Any] = {}
    if not said:
        return found
    if said.get("usage") is not None:
        found["usage"] = read_usage(said["usage"], answered(message), rest, f"{path}.usage")
    choices = said.get("choices")
    choice = fields_of(choices[0]) if isinstance(choices, list) and choices else {}
    for source, known in ((said, _RESPONSE), (choice, _CHOICE)):
        rest.put_others(source, known, path if source is said else f"{path}.choices[0]")
    if isinstance(choices, list) and len(choices) > 1:
        rest.put(f"{path}.choices", choices[1:])
    finish, model = choice.get("finish_reason"), said.get("model")
    found["finish_reason"] = finish_reason(finish)
    found["response_model"] = model if isinstance(model, str) and model else None
    found["start"] = nanoseconds(said.get("created"))
    if isinstance(said.get("id"), str):
        rest.attributes["response_id"] = said["id"]
    return found


def cost_of(value: object) -> float | None:
    """A cost in dollars; None where there is none stated."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return float(value)
