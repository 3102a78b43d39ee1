"""Between HTTP and the sampler: a request's rows are made, entered, followed and let go.

Enter: checked requests and their prompts as ids. Leaves: a job whose choices fill up. Invariant:
when a request ends, for whatever reason, its rows are finished or abandoned.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from flywheel.errors import Busy
from serving.engines.embedded_answers import Choice, Deliver, Job, Mailbox, Vocabulary
from serving.engines.embedded_batch import Row
from serving.engines.embedded_choose import Choosing, generator
from serving.engines.embedded_cohort import Bounds
from serving.engines.embedded_form import Form, Forms
from serving.engines.embedded_gangs import Gangs
from serving.engines.embedded_model import BASE
from serving.engines.embedded_requests import Asked, fit
from serving.engines.embedded_sampler import Sampler
from serving.engines.embedded_text import Speller
from serving.engines.embedded_weights import digest_if_any, model_like
from serving.refusal import ApiError, invalid
from trainer.models import is_whole
from trainer.render import Rendering

T = TypeVar("T")
SETTLED_S = 5.0
"""For the sampler to put away what it has just answered, before its model is replaced."""
encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """Nobody is there to be answered."""


class Service:
    def __init__(self, model: Path, rendering: Rendering, sampler: Sampler, bounds: Bounds) -> None:
        self.model, self.rendering, self.sampler, self.bounds = model, rendering, sampler, bounds
        self.tokenizer = rendering.tokenizer.backend_tokenizer
        self.vocabulary = Vocabulary(self.tokenizer)
        self.forms = Forms(rendering)
        self.gangs = Gangs(bounds.gang_wait_s, sampler.answer_gang)
        # One thread: a tokenizer is not made to be used by several at one time.
        self._renders = ThreadPoolExecutor(1, thread_name_prefix="render")

    async def render(self, what: Callable[[], T]) -> T:
        """Runs tokenizing work off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._renders, what)

    def admit(self, asked: Asked) -> None:
        """
        Raises:
            ApiError: 404: no such model. 503: draining.
        """
        if not self.sampler.serves(asked.model):
            known = ", ".join(self.names())
            raise ApiError(
                404,
                f"the model {asked.model} does not exist here; there are: {known}",
                param="model",
                code="model_not_found",
            )
        if self.sampler.draining:
            raise ApiError(503, "the engine is draining", code="draining", retry_after=5)

    async def load(self, name: str, folder: Path) -> None:
        """Serves the weights in `folder` as `name`, beside all others: the base model with an
        adapter, or a whole model of its shape, which is read while others are answered.

        Raises:
            UsageError: the name is taken by other weights.
            CorruptFile, MissingPart: it is neither, or does not fit the base model.
        """
        digest, whole = await asyncio.to_thread(digest_if_any, folder), None
        if is_whole(folder) and name not in self.sampler.adapters:
            whole = await asyncio.to_thread(
                model_like, self.sampler.model, self.rendering, folder, name
            )
        await asyncio.wrap_future(self.sampler.load(name, folder, digest, whole))

    async def replace(self, folder: Path) -> None:
        """Serves the model in `folder` from now on; adapters are gone.

        Raises:
            CorruptFile, MissingPart: it is no model, or one of other tokens or another shape.
            Busy: answers are under way.
        """
        model = await asyncio.to_thread(
            model_like, self.sampler.model, self.rendering, folder, BASE
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_S
        while True:
            try:
                await asyncio.wrap_future(self.sampler.replace(model))
                break
            except Busy:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.01)
        self.model = folder

    def names(self) -> list[str]:
        return ["base", *filter(self.sampler.serves, list(self.sampler.adapters))]

    def check_ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        most = self.sampler.model.vocabulary
        if any(not 0 <= token < most for token in ids):
            raise invalid(f"token ids must be from 0 to {most - 1}", "prompt")
        return tuple(ids)

    def enter(
        self,
        request: Request,
        asked: Asked,
        prompts: Sequence[tuple[int, ...]],
        *,
        top_logprobs: int,
        skip_special: bool,
        form: Callable[[], Form] | None = None,
    ) -> Job:
        """Every prompt's `n` choices, on their way. Whoever calls must `leave` the job in the end.

        Raises:
            ApiError: 429 or 503: it cannot be taken now. 400: its gang contradicts it.
        """
        mailbox = Mailbox()
        choosing = asked.choosing(top_logprobs)
        each = [prompt for prompt in prompts for _ in range(asked.choices)]
        choices = [
            self._choice(
                mailbox,
                index,
                prompt,
                asked,
                dataclasses.replace(choosing, form=form()) if form is not None else choosing,
                skip_special,
            )
            for index, prompt in enumerate(each)
        ]
        job = Job(mailbox, choices, asked.flywheel_gang)
        self._enter(asked, job.rows)
        job.watch = asyncio.create_task(self._watch(request, job))
        return job

    def leave(self, job: Job) -> None:
        """Lets go of what is unfinished."""
        job.abandon()
        if job.watch is not None:
            job.watch.cancel()
        if job.gang is not None:
            self.gangs.leave(job.gang, job.rows)

    async def _watch(self, request: Request, job: Job) -> None:
        """Leaves the job when the client hangs up; the body must have been read before."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        job.mailbox.hang_up()
        job.watch = None
        self.leave(job)

    def stream(self, job: Job, chunks: AsyncIterator[dict[str, Any]]) -> Response:
        """`chunks` as server-sent events; a failure amid them is the last event but one."""

        async def events() -> AsyncIterator[bytes]:
            try:
                async for chunk in chunks:
                    yield b"data: " + encode(chunk) + b"\n\n"
            except ApiError as error:
                yield b"data: " + error.body() + b"\n\n"
            except ClientGone:
                return
            finally:
                self.leave(job)
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def finish(self, job: Job) -> None:
        """Until all choices are over.

        Raises:
            ApiError: one of them failed.
            ClientGone: the client hung up.
        """
        try:
            while not job.over:
                await news(job)
        finally:
            self.leave(job)

    def _enter(self, asked: Asked, rows: list[Row]) -> None:
        if len(rows) > self.bounds.queue:
            most = self.bounds.queue
            raise invalid(f"this asks for {len(rows)} answers; one request may for {most}", "n")
        try:
            if asked.flywheel_gang is not None:
                self.gangs.join(asked.flywheel_gang, rows)
            else:
                self.sampler.answer(rows)
        except Busy as error:
            raise ApiError(429, str(error), code="engine_busy", retry_after=2) from error

    def _choice(
        self,
        mailbox: Mailbox,
        index: int,
        prompt: tuple[int, ...],
        asked: Asked,
        choosing: Choosing,
        skip_special: bool,
    ) -> Choice:
        stops = asked.stops
        ends = () if asked.ignore_eos else self.rendering.stop_ids
        turn = index % asked.choices
        row = Row(
            adapter=asked.model,
            prompt=prompt,
            choosing=choosing,
            generator=generator(asked.seed, turn),
            max_tokens=fit(len(prompt), asked.max_tokens, self.bounds.context),
            stop_ids=frozenset([*ends, *(asked.stop_token_ids or ())]),
            deliver=_to(mailbox, index),
            seed=asked.seed,
            choice=turn,
            steady=bool(asked.flywheel_steady),
        )
        if stops:
            row.halts = Speller(self.tokenizer, stops, skip_special=skip_special).push
        return Choice(row, Speller(self.tokenizer, stops, skip_special=skip_special))


async def news(job: Job) -> list[tuple[Choice, int, list[Any]]]:
    found = await job.news()
    if job.mailbox.gone:
        raise ClientGone
    if job.failed:
        gang = job.failed.startswith("gang ")
        raise ApiError(
            400 if gang else 500, job.failed, code="gang_incomplete" if gang else "engine_failed"
        )
    return found


def _to(mailbox: Mailbox, index: int) -> Deliver:
    return lambda drawn, finish: mailbox.put(index, drawn, finish)
