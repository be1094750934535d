"""A prompt at the cost of what it adds to the prompt before it, or to any prompt before: for certified tokenizers.

The ids up to a cut that both prompts share are taken from the conversation's anchor; what follows is cut into chunks,
found by content where they have been seen, and encoded otherwise. Both give exactly the ids of the whole prompt.
"""

from typing import TypeAlias

import numpy as np

from services.tokenizer.rope.anchors import AnchorCache, common_prefix
from services.tokenizer.rope.chunks import ChunkCache
from services.tokenizer.rope.cuts import cut
from services.tokenizer.rope.encoded import Encoded
from services.tokenizer.rope.prompt_text import PromptText, TokenIds, shared_markup
from services.tokenizer.rope.statistics import Occupancy
from services.tokenizer.rope.stretches import split
from services.tokenizer.rope.whole import WholeEncoder
from services.tokenizer.rope.words import WordCache

_Piece: TypeAlias = tuple[int, TokenIds]
"""First character, and ids."""

_WORDS_SHARE = 4
"""The part of the memory for chunks that words get: one in so many bytes."""
_NO_IDS = np.empty(0, np.int32)


class ChunkedEncoder:
    """Any thread may call."""

    def __init__(self, whole: WholeEncoder, chunk_chars: int, chunk_bytes: int, entries: int, max_chars: int) -> None:
        self._whole = whole
        self._chunk_chars = chunk_chars
        self._chunks = ChunkCache(chunk_bytes - chunk_bytes // _WORDS_SHARE)
        self._words = WordCache(whole.plain, chunk_bytes // _WORDS_SHARE)
        self._anchors: AnchorCache[Encoded] = AnchorCache(entries, max_chars)
        self._nothing = whole.encode(PromptText(""))

    def occupancy(self) -> Occupancy:
        """What is held."""
        return Occupancy(len(self._anchors), self._anchors.num_chars, len(self._chunks), self._chunks.num_bytes)

    def encode(self, prompt: PromptText, anchor_key: str | None) -> Encoded:
        """The same ids as from the slow twin."""
        known = self._anchors.get(anchor_key) if anchor_key is not None else None
        encoded = self._extend(known or self._nothing, prompt)
        if anchor_key is not None:
            self._anchors.put(anchor_key, encoded)
        return encoded

    def _shared_pieces(self, anchor: Encoded, prompt: PromptText) -> int:
        """How many of the anchor's leading pieces are encoded the same in ``prompt``."""
        num_chars = min(common_prefix(anchor.prompt.text, prompt.text), shared_markup(anchor.prompt, prompt))
        if num_chars == len(prompt.text) == len(anchor.prompt.text):
            return len(anchor.piece_chars) - 1
        # An added token that begins before a cut may end behind it only if both prompts say so, and a cut needs the
        # space behind it.
        last = num_chars - self._whole.added.lookahead_chars - 1
        return max(0, int(np.searchsorted(anchor.piece_chars, last, side="right")) - 1)

    def _extend(self, anchor: Encoded, prompt: PromptText) -> Encoded:
        num_kept = self._shared_pieces(anchor, prompt)
        start, num_kept_ids = int(anchor.piece_chars[num_kept]), int(anchor.piece_tokens[num_kept])
        pieces, num_encoded = self._encode_tail(prompt, start)
        ids = np.concatenate([anchor.ids[:num_kept_ids], *(piece[1] for piece in pieces)])
        lengths = [num_kept_ids, *(len(piece[1]) for piece in pieces)]
        num_given = sum(len(span.ids) for span in prompt.exact if span.start >= start)
        return Encoded(
            prompt,
            ids,
            encoded_tokens=num_encoded,
            reused_tokens=len(ids) - num_encoded - num_given,
            piece_chars=np.concatenate(
                (anchor.piece_chars[:num_kept], np.array([*(piece[0] for piece in pieces), len(prompt.text)], np.int64))
            ),
            piece_tokens=np.concatenate((anchor.piece_tokens[:num_kept], np.cumsum(lengths, dtype=np.int64))),
            locate=self._whole.locate,
        )

    def _encode_tail(self, prompt: PromptText, start: int) -> tuple[list[_Piece], int]:
        """The pieces from character ``start`` on, and how many tokens had to be made for them."""
        pieces: list[_Piece] = []
        places: list[int] = []
        texts: list[str] = []
        num_added = 0
        for stretch in split(prompt, self._whole.added, start):
            if stretch.ids is not None:
                pieces.append((stretch.start, stretch.ids))
                num_added += not stretch.is_exact
                continue
            for chunk_start, chunk_end in cut(prompt.text, stretch.start, stretch.end, self._chunk_chars):
                places.append(len(pieces))
                texts.append(prompt.text[chunk_start:chunk_end])
                pieces.append((chunk_start, _NO_IDS))
        chunks, num_made = self._encode_chunks(texts)
        for place, ids in zip(places, chunks, strict=True):
            pieces[place] = (pieces[place][0], ids)
        return pieces, num_made + num_added

    def _encode_chunks(self, texts: list[str]) -> tuple[list[TokenIds], int]:
        """Ids of each text, and how many of them are new."""
        keys = [self._chunks.key(text) for text in texts]
        found = self._chunks.get(keys)
        missing = [index for index, ids in enumerate(found) if ids is None]
        if not missing:
            return [ids for ids in found if ids is not None], 0
        made = [self._words.encode(texts[index]) for index in missing]
        self._chunks.put([(keys[index], ids) for index, ids in zip(missing, made, strict=True)])
        left = iter(made)
        return [next(left) if ids is None else ids for ids in found], sum(map(len, made))
