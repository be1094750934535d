"""Ids of words that were met before, which is cheaper than encoding them again: for certified tokenizers."""

from collections.abc import Iterable

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import Sequence

from services.tokenizer.rope.certify import ascii_stages
from services.tokenizer.rope.cuts import split_words
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.rope.whole import encode_text

_MAX_WORD_CHARS = 64
"""Longer ones hardly come twice."""
_ENTRY_BYTES = 256
_SEPARATOR = "\x1e"
_ID_BYTES = 4


class WordCache:
    """Any thread may call."""

    def __init__(self, plain: Tokenizer, max_bytes: int) -> None:
        """``plain`` is certified and finds no added tokens."""
        self._plain = plain
        self._separating = _separating(plain, plain.pre_tokenizer, plain.normalizer)
        # ASCII is its own normal form and needs no stage that looks for other characters only.
        stages = plain.pre_tokenizer
        if isinstance(stages, Sequence):
            stages = Sequence(ascii_stages(stages))
        self._separating_ascii = _separating(plain, stages, None)
        self._separator_id = self._separating.token_to_id(_SEPARATOR)
        self._is_usable = self._separator_id is not None and plain.id_to_token(self._separator_id) is None
        self._max_words = max_bytes // _ENTRY_BYTES
        self._ids_by_word: dict[str, bytes] = {}

    @property
    def num_words(self) -> int:
        """Words held."""
        return len(self._ids_by_word)

    def encode(self, text: str) -> TokenIds:
        """The ids of ``text``. Blocks, and releases the GIL while it encodes."""
        if not self._is_usable or _SEPARATOR in text:
            return encode_text(self._plain, text)
        words = split_words(text)
        known = self._ids_by_word
        found = list(map(known.get, words))
        if None in found:
            made = self._make({word for word, ids in zip(words, found, strict=True) if ids is None})
            found = [made[word] if ids is None else ids for word, ids in zip(words, found, strict=True)]
        # Nothing in it is None by now, and join() would say so.
        return np.frombuffer(b"".join(found), np.int32)  # pyright: ignore[reportArgumentType]

    def _make(self, words: set[str]) -> dict[str, bytes]:
        made = dict(self._encode_apart(list(words)))
        # A dictionary that is full is left to those who read it now; words that matter come again soon.
        if len(self._ids_by_word) + len(made) > self._max_words:
            self._ids_by_word = {}
        if len(made) <= self._max_words:
            self._ids_by_word.update({word: ids for word, ids in made.items() if len(word) <= _MAX_WORD_CHARS})
        return made

    def _encode_apart(self, words: list[str]) -> Iterable[tuple[str, bytes]]:
        """Ids of each word, in one call: a token that stands between two words keeps them apart."""
        text = _SEPARATOR.join(words)
        ids = encode_text(self._separating_ascii if text.isascii() else self._separating, text)
        data = ids.tobytes()
        start = 0
        ends = [*np.flatnonzero(ids == self._separator_id).tolist(), len(ids)]
        for word, end in zip(words, ends, strict=True):
            yield word, data[_ID_BYTES * start : _ID_BYTES * end]
            start = end + 1


def _separating(plain: Tokenizer, pre_tokenizer: object, normalizer: object) -> Tokenizer:
    """A tokenizer with the same model to which the separator is a token."""
    tokenizer = Tokenizer(plain.model)
    for name, part in (("pre_tokenizer", pre_tokenizer), ("normalizer", normalizer)):
        if part is not None:
            setattr(tokenizer, name, part)
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType]
        [AddedToken(_SEPARATOR, special=True, normalized=False)]
    )
    return tokenizer
