"""Whether an answer is of the form that was asked for, and whether the model declined.

Enters a request and its whole answer. Leave a refusal, yes or no, and why the form is broken, in
words. Only what a program can see for certain is called broken: no JSON where it was asked for, a
call of a tool that was not offered, nothing at all. An answer that the length limit cut is broken
where a form was asked for, since it cannot be read. Time is bounded whatever the schema says.
"""

import re
from functools import lru_cache
from typing import Any

import msgspec

from serving.answer import Answer, AnswerChoice
from serving.chat import Chat

_DECLINES = re.compile(
    r"\s*(?:i['’]?m (?:very |so |really )?sorry|i am sorry|sorry|i apologi[sz]e|unfortunately)?"
    r"[\s,.;:–—-]*(?:but |however,? )?(?:as an ai[^.,]{0,40}[,.] ?)?"
    r"i(?:['’]m| am)? (?:can['’]?t|can ?not|won['’]?t|will not|(?:not able|unable) to"
    r"|must (?:decline|refuse)|have to decline|decline to) "
    r"(?:\w+ ){0,2}?"
    r"(?:help|assist|comply|provide|fulfil|do that|do this|answer|discuss|continue|engage"
    r"|create|generate|write|share|give|support|participate|process)",
    re.IGNORECASE,
)
_OPENING = 300
"""Characters in which a refusal has said what it is."""
_LARGEST = 2**18
"""Bytes of an answer, or of a schema, that are held against each other."""
_STEPS = 20_000
"""Keywords that one check may apply: a schema can say in a line what takes an hour."""
_DROPPED = {"pattern", "patternProperties", "uniqueItems", "$dynamicRef", "$recursiveRef"}
"""Keywords whose time no step count bounds; an answer is given the benefit of the doubt."""


def declined(answer: Answer) -> bool:
    """Whether any of its choices is a refusal, by its own field or by how it opens."""
    return any(_declined(choice) for choice in answer.choices)


def broken(chat: Chat, answer: Answer) -> str | None:
    """Why the answer is not of the form asked for; None = it is."""
    if not answer.choices:
        return "there is no answer"
    if chat.bare:
        return None  # a text that goes on may end at once
    return next((why for choice in answer.choices if (why := _broken(chat, choice))), None)


def _declined(choice: AnswerChoice) -> bool:
    message = choice.message
    if choice.finish_reason == "content_filter" or message.get("refusal"):
        return True
    text = message.get("content")
    if not isinstance(text, str) or message.get("tool_calls"):
        return False
    return _DECLINES.match(text[:_OPENING]) is not None


def _broken(chat: Chat, choice: AnswerChoice) -> str | None:
    message = choice.message
    text, calls = message.get("content"), message.get("tool_calls")
    if calls or message.get("function_call"):
        return _calls(chat, calls) if calls else None
    if _declined(choice):
        # It is counted as that; a model that declines owes no form.
        return None
    if not text:
        # What spent all of its room on thinking was cut, and is no broken form.
        thought = message.get("reasoning_content") or message.get("reasoning")
        cut = thought and choice.finish_reason == "length"
        return None if cut else "the answer is empty"
    return _formatted(chat, text) if isinstance(text, str) else None


def _formatted(chat: Chat, text: str) -> str | None:
    asked = chat.response_format
    if asked is None:
        return None
    try:
        value = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "the answer is not JSON"
    if asked.get("type") == "json_object":
        return None if isinstance(value, dict) else "the answer is JSON but no object"
    named = asked.get("json_schema")
    why = _unlike(value, named.get("schema"), len(text)) if isinstance(named, dict) else None
    return f"the answer is not what its schema says: {why}" if why else None


def _calls(chat: Chat, calls: Any) -> str | None:
    tools = {
        function["name"]: function.get("parameters")
        for tool in chat.request.tools or ()
        if isinstance(function := tool.get("function"), dict) and "name" in function
    }
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue  # of another kind than functions
        name, written = str(function.get("name"))[:100], function.get("arguments")
        if name not in tools:
            return f"it calls {name!r}, which was not offered"
        try:
            arguments = (
                msgspec.json.decode(written or "{}") if isinstance(written, str) else written
            )
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return f"the arguments of {name} are not JSON"
        if not isinstance(arguments, dict):
            return f"the arguments of {name} are no object"
        if why := _unlike(arguments, tools[name], len(str(written))):
            return f"the arguments of {name} are not what its schema says: {why}"
    return None


def _unlike(value: Any, schema: Any, size: int) -> str | None:
    """Where `value` breaks `schema`; None = nowhere that could be looked at."""
    if not isinstance(schema, dict) or not schema or size > _LARGEST:
        return None
    encoded = msgspec.json.encode(schema)
    return None if len(encoded) > _LARGEST else _checker(encoded)(value)


class _TooLong(Exception):
    pass


@lru_cache(maxsize=256)
def _checker(encoded: bytes) -> Any:
    """A schema's check. Its own `$ref`s are followed and no others: nothing is fetched."""
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    left = 0

    def counted(keyword: Any) -> Any:
        def check(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _TooLong
            return keyword(*given)

        return check

    known = Draft202012Validator.VALIDATORS.items()
    bounded = {name: counted(keyword) for name, keyword in known if name not in _DROPPED}
    kind = validators.create(Draft202012Validator.META_SCHEMA, bounded)
    validator = kind(msgspec.json.decode(encoded), registry=Registry())

    def check(value: Any) -> str | None:
        nonlocal left
        left = _STEPS
        try:
            error = best_match(validator.iter_errors(value))
        except (_TooLong, Unresolvable, RecursionError, TypeError, ValueError, KeyError):
            return None  # a schema that is none breaks no answer
        except AttributeError:
            return None
        if error is None:
            return None
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path)
        return f"{where[:100] or 'it'}: breaks `{error.validator}`"

    return check
