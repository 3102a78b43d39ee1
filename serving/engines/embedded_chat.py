"""/v1/chat/completions: messages are rendered, answers are parsed into text and tool calls.

Enter: a request's body. Leaves: one JSON object, or a stream of server-sent events whose pieces,
put together, are the same message.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from flywheel.errors import BadRecord
from flywheel.records import Message, Unknown
from serving.conversation import Offload, messages_of
from serving.engines.embedded_answers import Choice, Job, Wording, spelled_calls, usage
from serving.engines.embedded_requests import ChatAsked, fit, read_chat
from serving.engines.embedded_service import Service, encode, news
from serving.refusal import invalid

_BOUNDLESS = 2**62


def _put(data: bytes) -> str:
    raise AssertionError("nothing is over a boundless limit")


_offload = Offload(_put, text=_BOUNDLESS, inline_image=_BOUNDLESS)


async def chat(service: Service, request: Request, body: bytes) -> Response:
    asked = await service.render(lambda: read_chat(body))
    service.admit(asked)
    prompt = service.check_ids(await service.render(lambda: _prompt(service, asked)))
    form = await service.render(lambda: service.forms.of(asked))
    fit(len(prompt), asked.max_tokens, service.bounds.context)
    wording = Wording(
        service.vocabulary,
        chat=True,
        model=asked.model,
        created=int(time.time()),
        logprobs=bool(asked.logprobs),
        ids=bool(asked.return_token_ids),
        ids_as_tokens=bool(asked.return_tokens_as_token_ids),
    )
    job = service.enter(
        request,
        asked,
        [prompt],
        top_logprobs=asked.top_logprobs or 0,
        skip_special=False,
        form=form,
    )
    if asked.stream:
        return service.stream(job, _chunks(service, asked, prompt, job, wording))
    await service.finish(job)
    answer = _whole(service, asked, prompt, job, wording)
    return Response(encode(answer), media_type="application/json")


def _prompt(service: Service, asked: ChatAsked) -> list[int]:
    try:
        messages = [_known(message) for message in messages_of(asked.messages, _offload)]
        return service.rendering.render_prompt(messages, asked.tools or ())
    except BadRecord as error:
        raise invalid(str(error), error.field or "messages") from error


def _known(message: Message) -> Message:
    """Without fields that nobody knows: OpenAI's clients send their own answers back with them."""
    parts = tuple(
        part
        for part in message.parts
        if not (isinstance(part, Unknown) and part.kind.startswith("message."))
    )
    return msgspec.structs.replace(message, parts=parts)


def _message(service: Service, asked: ChatAsked, choice: Choice) -> tuple[dict[str, Any], str]:
    """The answer's message and finish reason."""
    assert choice.finish is not None
    choice.speller.finish()
    if choice.speller.stopped or not asked.tools:
        return {"role": "assistant", "content": choice.speller.text}, choice.finish
    message = service.rendering.parse(choice.ids, asked.tools).message
    said: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        said |= {"content": message.text or None, "tool_calls": spelled_calls(message.tool_calls)}
        return said, "tool_calls" if choice.finish == "stop" else choice.finish
    return said, choice.finish


def _whole(
    service: Service, asked: ChatAsked, prompt: tuple[int, ...], job: Job, wording: Wording
) -> dict[str, Any]:
    choices = []
    for index, choice in enumerate(job.choices):
        message, finish = _message(service, asked, choice)
        said = {
            "index": index,
            "message": message,
            "logprobs": wording.logprobs_of(choice.drawn),
            "finish_reason": finish,
        }
        choices.append({**said, "token_ids": choice.ids} if wording.ids else said)
    answer = {**wording.envelope(chunk=False), "choices": choices}
    if wording.ids:
        answer["prompt_token_ids"] = list(prompt)
    return {**answer, "usage": usage(len(prompt), job.choices)}


async def _chunks(
    service: Service, asked: ChatAsked, prompt: tuple[int, ...], job: Job, wording: Wording
) -> AsyncIterator[dict[str, Any]]:
    envelope = wording.envelope(chunk=True)
    for index in range(len(job.choices)):
        first = {"index": index, "delta": {"role": "assistant", "content": ""}}
        chunk = {**envelope, "choices": [{**first, "logprobs": None, "finish_reason": None}]}
        if wording.ids and index == 0:
            chunk["prompt_token_ids"] = list(prompt)
        yield chunk
    while not job.over:
        for choice, index, drawn in await news(job):
            delta, finish = _delta(service, asked, choice)
            if not (delta or finish or wording.ids or wording.logprobs):
                continue
            said = {
                "index": index,
                "delta": delta,
                "logprobs": wording.logprobs_of(drawn),
                "finish_reason": finish,
            }
            if wording.ids:
                said["token_ids"] = [each.id for each in drawn]
            yield {**envelope, "choices": [said]}
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield {**envelope, "choices": [], "usage": usage(len(prompt), job.choices)}


def _delta(service: Service, asked: ChatAsked, choice: Choice) -> tuple[dict[str, Any], str | None]:
    """What a choice shows now. What may be part of a tool call is shown at its end."""
    if asked.tools:
        if choice.finish is None:
            return {}, None
        message, finish = _message(service, asked, choice)
        del message["role"]
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        return message, finish
    piece = choice.speller.take()
    if choice.finish is not None:
        piece += choice.speller.finish()
    return {"content": piece} if piece else {}, choice.finish
