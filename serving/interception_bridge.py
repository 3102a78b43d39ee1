"""Prompts of later turns as token ids, so that what was sampled stays as it was sampled.

Enter: the call that a new one extends, and the messages that are new. Leave: ids whose beginning
is exactly the earlier prompt and what was sampled after it, or the reason why there are none; then
the model's server lays out the whole history anew and the trace has a branch.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flywheel.errors import BadRecord, FlywheelError
from flywheel.records import Message, Tokens, say
from serving.conversation import Offload, messages_of

if TYPE_CHECKING:
    from trainer.render import Rendering


_log = logging.getLogger("flywheel.interception")


def _put(data: bytes) -> str:
    raise AssertionError("nothing is over a boundless limit")


_boundless = Offload(_put, text=2**62, inline_image=2**62)


class Prompt(NamedTuple):
    ids: tuple[int, ...] | None
    why: str | None
    """Why there are no ids."""


class Bridge:
    """One model's chat template; it is loaded when a second turn first needs it."""

    def __init__(self, load: "Callable[[], Rendering] | None") -> None:
        self._load = load
        self._rendering: Rendering | None = None
        self._why: str | None = None
        # One thread: a tokenizer is not made to be used by several at one time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bridge")

    def default(self, base: str | None) -> None:
        """Where nobody said how to load it: from the base model's folder, if it is here."""
        if self._load is None and base is not None and (Path(base) / "tokenizer.json").is_file():
            self._load = partial(load_rendering, Path(base))

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def parse(
        self, ids: Sequence[int], tools: Sequence[dict[str, Any]]
    ) -> tuple[Message, bool]:
        """Of an answer to one of our prompts: the message, and whether a stop token ended it."""
        rendering = self._rendering
        assert rendering is not None

        def work() -> tuple[Message, bool]:
            try:
                answer = rendering.parse(ids, tools)
            except Exception:  # a renderer's fault over odd ids: what was said stays text
                _log.exception("an answer of %s tokens could not be parsed", len(ids))
                ended = any(token in rendering.stop_ids for token in ids)
                return say("assistant", rendering.decode(ids)), ended
            return answer.message, answer.finish_reason != "length"

        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def prompt(
        self,
        before: Tokens | None,
        new: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        digests: tuple[str | None, str | None],
    ) -> Prompt:
        """
        Args:
            before: of the call that is extended.
            new: OpenAI's messages since its answer.
            digests: of the server's chat template and tokenizer, as far as it said them.
        """
        if before is None:
            return Prompt(None, "the call before has no tokens")
        if self._load is None:
            return Prompt(None, "no tokenizer of this model is at hand")
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._prompt, before, new, tools, digests
        )

    def _prompt(
        self,
        before: Tokens,
        new: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        digests: tuple[str | None, str | None],
    ) -> Prompt:
        if why := self._unfit(digests):
            return Prompt(None, why)
        assert self._rendering is not None
        ids = [*before.prompt_ids, *before.completion_ids]
        try:
            found = self._rendering.bridge(
                ids, messages_of(list(new), _boundless), tools, prompt_length=len(before.prompt_ids)
            )
        except BadRecord as error:
            return Prompt(None, str(error))
        except Exception as error:  # a renderer's fault is the reason for a branch
            _log.exception("a turn could not be laid out")
            return Prompt(None, f"the renderer failed: {type(error).__name__}: {error}")
        if found is None:
            return Prompt(None, "the chat template does not keep what was sampled")
        if found[: len(ids)] != ids:
            return Prompt(None, "the template's next turn does not begin with what was sampled")
        return Prompt(tuple(found), None)

    def _unfit(self, digests: tuple[str | None, str | None]) -> str | None:
        if self._rendering is None and self._why is None:
            assert self._load is not None
            try:
                rendering = self._load()
            except FlywheelError as error:
                self._why = str(error)
                return self._why
            ours = (rendering.template_digest, rendering.tokenizer_digest)
            for name, theirs, own in zip(
                ("chat template", "tokenizer"), digests, ours, strict=True
            ):
                if theirs != own:
                    said = "is not known" if theirs is None else "is another than the trainer's"
                    self._why = f"the server's {name} {said}"
                    return self._why
            self._rendering = rendering
        return self._why


def load_rendering(base: Path) -> "Rendering":
    """Of a base model's folder.

    Raises:
        MissingPart: there is no renderer for its chat template.
    """
    from trainer.models import load_tokenizer
    from trainer.render import renderer_for

    return renderer_for(load_tokenizer(base))
