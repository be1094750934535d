"""Sampled ids → text, from the table of token bytes.

    ids → bytes → held back while they may begin a stop → whole characters

Nothing here can raise, whatever a model samples.
"""

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.tokenizer.events import TokenLogprobs
from services.tokenizer.stop import StopMatcher
from services.vocabulary import Vocabulary


def decode(vocabulary: Vocabulary, ids: Iterable[int]) -> str:
    """Text of whole ids, special tokens as they are spelt; what is no UTF-8 becomes U+FFFD."""
    return b"".join(vocabulary.spell(token_id) for token_id in ids).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class PlacedLogprobs:
    """``start`` is the place in the whole text of the character that the token begins or goes on with."""

    start: int
    logprobs: TokenLogprobs


class TextStream:
    """Text of one choice, in pieces of whole characters.

    Invariant: all pieces together are the bytes before the first stop, decoded at once.
    """

    def __init__(self, vocabulary: Vocabulary, hidden_ids: frozenset[int], stop_texts: Sequence[str]) -> None:
        """``hidden_ids`` are control tokens: they have no text, and a stop may begin before one and end after it."""
        self._vocabulary = vocabulary
        self._hidden_ids = hidden_ids
        self._stop_texts = stop_texts
        self._matcher = StopMatcher([text.encode() for text in stop_texts])
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = bytearray()
        self._num_released = 0
        self._num_characters = 0
        self._logprobs: deque[tuple[int, TokenLogprobs]] = deque()
        self._stop: int | None = None

    @property
    def stop_text(self) -> str | None:
        """The stop text that ended the text."""
        return None if self._stop is None else self._stop_texts[self._stop]

    def push(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()
    ) -> tuple[str, tuple[PlacedLogprobs, ...]]:
        """The text that is now certain, and the log-probabilities of the tokens that begin in it.

        ``logprobs`` has as many entries as ``ids``, or none. After a stop there is no more text.
        """
        if self._stop is not None:
            return "", ()
        for position, token_id in enumerate(ids):
            if token_id in self._hidden_ids:
                continue
            token = self._vocabulary.spell(token_id)
            start = len(self._held)
            if logprobs:
                self._logprobs.append((self._num_released + start, logprobs[position]))
            self._held += token
            if match := self._matcher.feed(token):
                self._stop = match.index
                return self._release(start + match.start, is_final=True)
        return self._release(len(self._held) - self._matcher.num_held, is_final=False)

    def finish(self) -> tuple[str, tuple[PlacedLogprobs, ...]]:
        """What was held back, once no more ids come."""
        if self._stop is not None:
            return "", ()
        return self._release(len(self._held), is_final=True)

    def _release(self, num_bytes: int, *, is_final: bool) -> tuple[str, tuple[PlacedLogprobs, ...]]:
        placed: list[PlacedLogprobs] = []
        text, done = "", 0
        while self._logprobs and self._logprobs[0][0] < self._num_released + num_bytes:
            position, logprobs = self._logprobs.popleft()
            start = position - self._num_released
            text += self._decoder.decode(bytes(self._held[done:start]))
            placed.append(PlacedLogprobs(self._num_characters + len(text), logprobs))
            done = start
        text += self._decoder.decode(bytes(self._held[done:num_bytes]), is_final)
        del self._held[:num_bytes]
        self._num_released += num_bytes
        self._num_characters += len(text)
        return text, tuple(placed)
