"""/v1/completions: token ids or text in, answers, scores of the prompt, or both.

Enter: a request's body. Leaves: one JSON object or a stream. `prompt_logprobs` are the model's own,
at temperature 1 over the whole softmax, as vLLM gives them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serving.engines.embedded_answers import Choice, Job, Wording, usage
from serving.engines.embedded_choose import Drawn
from serving.engines.embedded_requests import CompletionAsked, fit, read_completion
from serving.engines.embedded_score import Prompt, Scored
from serving.engines.embedded_service import Service, encode, news
from serving.refusal import invalid


async def complete(service: Service, request: Request, body: bytes) -> Response:
    asked = await service.render(lambda: read_completion(body))
    service.admit(asked)
    prompts = await service.render(lambda: _prompts(service, asked))
    for prompt in prompts:
        fit(len(prompt), asked.max_tokens, service.bounds.context + (asked.max_tokens == 0))
    wording = Wording(
        service.vocabulary,
        chat=False,
        model=asked.model,
        created=int(time.time()),
        logprobs=asked.logprobs is not None,
        ids=bool(asked.return_token_ids),
        ids_as_tokens=bool(asked.return_tokens_as_token_ids),
    )
    choices: Sequence[Choice | None] = [None] * (len(prompts) * asked.choices)
    scores = await _scores(service, asked, prompts)
    if asked.max_tokens:
        job = service.enter(
            request, asked, prompts, top_logprobs=asked.logprobs or 0, skip_special=True
        )
        if asked.stream:
            return service.stream(job, _chunks(asked, prompts, job, wording))
        await service.finish(job)
        choices = job.choices
    elif asked.stream:
        raise invalid("a stream needs max_tokens of at least 1", "max_tokens")
    answer = _whole(service, asked, prompts, choices, scores, wording)
    return Response(encode(answer), media_type="application/json")


def _prompts(service: Service, asked: CompletionAsked) -> list[tuple[int, ...]]:
    found = []
    for prompt in asked.prompts():
        if isinstance(prompt, str):
            prompt = list(service.tokenizer.encode(prompt).ids)
        if not prompt:
            raise invalid("the prompt has no tokens", "prompt")
        found.append(service.check_ids(prompt))
    return found


async def _scores(
    service: Service, asked: CompletionAsked, prompts: list[tuple[int, ...]]
) -> list[Prompt] | None:
    wanted = [asked.prompt_logprobs] if asked.prompt_logprobs is not None else []
    if asked.echo and asked.logprobs is not None:
        wanted.append(asked.logprobs)
    if not wanted:
        return None
    future = service.sampler.score(asked.model, prompts, max(wanted))
    return await asyncio.wrap_future(future)


def _whole(
    service: Service,
    asked: CompletionAsked,
    prompts: list[tuple[int, ...]],
    choices: Sequence[Choice | None],
    scores: list[Prompt] | None,
    wording: Wording,
) -> dict[str, Any]:
    said = []
    for index, choice in enumerate(choices):
        place = index // asked.choices
        prompt, scored = prompts[place], scores[place] if scores else None
        text = ""
        if choice is not None:
            choice.speller.finish()
            text = choice.speller.text
        drawn = choice.drawn if choice else []
        one: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": wording.logprobs_of(drawn),
            "finish_reason": choice.finish if choice else "length",
        }
        if asked.echo:
            one |= _echoed(service, prompt, scored, one, drawn, wording)
        if asked.prompt_logprobs is not None and scored is not None:
            one["prompt_logprobs"] = _prompt_logprobs(
                service, prompt, scored, asked.prompt_logprobs
            )
        if wording.ids:
            one |= {"token_ids": [d.id for d in drawn], "prompt_token_ids": list(prompt)}
        said.append(one)
    counted = usage(sum(map(len, prompts)), [choice for choice in choices if choice])
    return {**wording.envelope(chunk=False), "choices": said, "usage": counted}


def _echoed(
    service: Service,
    prompt: tuple[int, ...],
    scored: Prompt | None,
    one: dict[str, Any],
    drawn: Sequence[Drawn],
    wording: Wording,
) -> dict[str, Any]:
    """The prompt before the answer, its logprobs before the answer's."""
    text = service.tokenizer.decode(list(prompt), skip_special_tokens=True)
    echoed: dict[str, Any] = {"text": text + one["text"]}
    if wording.logprobs and scored is not None:
        before = [
            Drawn(token, score.logprob if score else 0.0, score.top if score else ())
            for token, score in zip(prompt, scored, strict=True)
        ]
        logprobs = wording.logprobs_of([*before, *drawn]) or {}
        logprobs["token_logprobs"][0] = logprobs["top_logprobs"][0] = None
        echoed["logprobs"] = logprobs
    return echoed


def _prompt_logprobs(
    service: Service, prompt: tuple[int, ...], scored: Prompt, top: int
) -> list[dict[str, Any] | None]:
    """As vLLM: for each token those of the likeliest and its own, by id."""

    def one(token: int, score: Scored) -> dict[str, Any]:
        likeliest = [(other, logprob, rank + 1) for rank, (other, logprob) in enumerate(score.top)]
        own = (token, score.logprob, score.rank)
        return {
            str(other): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": service.vocabulary(other),
            }
            for other, logprob, rank in [*likeliest[:top], own]
        }

    return [
        None if score is None else one(token, score)
        for token, score in zip(prompt, scored, strict=True)
    ]


async def _chunks(
    asked: CompletionAsked, prompts: list[tuple[int, ...]], job: Job, wording: Wording
) -> AsyncIterator[dict[str, Any]]:
    envelope = wording.envelope(chunk=True)
    begun: set[int] = set()
    while not job.over:
        for choice, index, drawn in await news(job):
            piece = choice.speller.take()
            if choice.finish is not None:
                piece += choice.speller.finish()
            said: dict[str, Any] = {
                "index": index,
                "text": piece,
                "logprobs": wording.logprobs_of(drawn),
                "finish_reason": choice.finish,
            }
            if wording.ids:
                said["token_ids"] = [each.id for each in drawn]
                if index not in begun:
                    said["prompt_token_ids"] = list(prompts[index // asked.choices])
            begun.add(index)
            yield {**envelope, "choices": [said]}
    if asked.stream_options is not None and asked.stream_options.include_usage:
        counted = usage(sum(map(len, prompts)), job.choices)
        yield {**envelope, "choices": [], "usage": counted}
