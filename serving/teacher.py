"""What a teacher's engine says of tokens that others sampled: one prefill, nothing generated.

Enter: prompt and completion ids. Leave: the logprob of each completion token at temperature 1, in
the order asked. Implements `trainer.algorithms.contract.Scorer`. Invariants: the teacher reads the
very ids that the student wrote, so that both have one tokenizer, or it is refused; what is no
logprob is never learnt from.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from flywheel.errors import EngineError, Refused
from serving.engines.client import BATCH, EngineClient

if TYPE_CHECKING:
    from trainer.render import Rendering

Pair = tuple[Sequence[int], Sequence[int]]
TOKENS = 16_384
"""Of one request, prompts and completions together: the engine holds logits of them."""
AT_ONCE = 2
"""Requests under way together: the engine computes one while it takes in the other."""
PAUSES_S = (1.0, 4.0, 10.0)
"""Before each further try of a request that failed."""
_ROUNDED = 1e-3
"""What a logprob may be above 0, by number formats' rounding."""
_PROBE = "Tokens: 3,1415 \tNaïve — €5?\n{}[] ==> 'it''s' 漢字 🙂"
"""Text that tokenizers take apart in different ways."""


class Teacher:
    def __init__(self, client: EngineClient, model: Callable[[], str]) -> None:
        """`model`: its name in the engine, asked before each request; the newest version's name
        makes the policy its own teacher."""
        self._client, self._model = client, model

    def __call__(self, pairs: Sequence[Pair]) -> list[list[float]]:
        """
        Raises:
            EngineError: it could not be asked.
            Refused: it says what is no logprob.
        """
        some = list(_portions([pair for pair in pairs if pair[1]]))
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="teacher") as pool:
            said = iter([row for rows in pool.map(self._asked, some) for row in rows])
        return [next(said) if completion else [] for _, completion in pairs]

    def _asked(self, pairs: list[Pair]) -> list[list[float]]:
        for pause in PAUSES_S:
            model = self._model()
            try:
                return self._believed(self._client.logprobs_of(model, pairs))
            except EngineError:
                if model == self._model():
                    time.sleep(pause)
                # else a newer version took the place of this one while it was asked.
        return self._believed(self._client.logprobs_of(self._model(), pairs))

    def _believed(self, said: list[list[float]]) -> list[list[float]]:
        """A batch that was put stays, so a number that no step can train must not enter one.

        Raises:
            Refused: one is no logprob.
        """
        odd = [one for row in said for one in row if not (math.isfinite(one) and one <= _ROUNDED)]
        if odd:
            raise Refused(f"the teacher at {self._client.url} says a logprob of {odd[0]}")
        return said


def _portions(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Neighbours, which as a rule share a prompt; a long one stands alone."""
    some: list[Pair] = []
    tokens = 0
    for pair in pairs:
        length = len(pair[0]) + len(pair[1])
        if some and (tokens + length > TOKENS or len(some) == BATCH):
            yield some
            some, tokens = [], 0
        some.append(pair)
        tokens += length
    if some:
        yield some


def must_read_alike(client: EngineClient, model: str, rendering: "Rendering") -> None:
    """
    Raises:
        Refused: the teacher's tokenizer is another than the student's, or cannot be known.
        EngineError: no answer.
    """
    if model not in client.models():
        raise Refused(f"the teacher at {client.url} has no model {model}: {client.models()}")
    theirs = client.health().get("tokenizer_digest")
    if theirs is None:
        ours = rendering.tokenizer.encode(_PROBE, add_special_tokens=False)
        same = client.token_ids(model, _PROBE) == ours
    else:
        same = theirs == rendering.tokenizer_digest
    if not same:
        raise Refused(
            f"the teacher {model} at {client.url} has another tokenizer than the student: it "
            "cannot say how likely the student's tokens are. Take a teacher of the same family, "
            'or learn from its answers with algorithm = "teacher"'
        )
