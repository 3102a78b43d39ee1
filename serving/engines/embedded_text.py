"""Token ids as text while they arrive: whole characters only, and stop strings.

Enter: sampled ids, one by one. Leaves: text that is certain, so that pieces shown one after another
are exactly the text of all ids, cut before the first stop string.
"""

from collections.abc import Sequence
from typing import Any


class Speller:
    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), *, skip_special: bool) -> None:
        """`tokenizer` is one of the tokenizers library (`backend_tokenizer` of transformers')."""
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stops, self._skip = tokenizer, tuple(stops), skip_special
        self._stream = DecodeStream(skip_special_tokens=skip_special)
        self._ids: list[int] = []
        self._shown = 0
        self.text = ""
        self.stopped = False

    def push(self, token: int) -> bool:
        """Adds a token; True = a stop string is complete, `text` ends before it."""
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer, token)
        if piece and not self.stopped:
            self._extend(piece)
        return self.stopped

    def take(self) -> str:
        """What can be shown and was not yet."""
        certain = len(self.text) - (0 if self.stopped else self._pending())
        piece = self.text[self._shown : certain]
        self._shown = max(self._shown, certain)
        return piece

    def finish(self) -> str:
        """The rest: no more tokens come. An unfinished character becomes U+FFFD."""
        if not self.stopped:
            whole = self._tokenizer.decode(self._ids, skip_special_tokens=self._skip)
            if len(whole) > len(self.text) and whole.startswith(self.text):
                self.text = whole
        piece = self.text[self._shown :]
        self._shown = len(self.text)
        return piece

    def _extend(self, piece: str) -> None:
        before = max(0, len(self.text) - max(map(len, self._stops), default=0))
        self.text += piece
        found = [self.text.find(stop, before) for stop in self._stops]
        found = [at for at in found if at >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True

    def _pending(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
