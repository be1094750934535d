"""The slow twin: a prompt's ids by encoding all of it.

What the cache must equal, and what serves where there is none.
"""

import numpy as np
from tokenizers import Tokenizer

from services.tokenizer.rope.added_tokens import AddedTokens
from services.tokenizer.rope.encoded import Encoded
from services.tokenizer.rope.prompt_text import PromptText, TokenIds
from services.tokenizer.rope.stretches import real_tokens


class WholeEncoder:
    """One tokenizer and its twin that knows no added tokens. Neither ever changes, so any thread may call."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes ``tokenizer`` over: truncation and padding, which some files switch on, are switched off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if type(tokenizer.post_processor).__name__ == "ByteLevel":
            # It changes no id; it only cuts spaces off the offsets.
            tokenizer.post_processor = None  # pyright: ignore[reportAttributeAccessIssue]
        self.tokenizer = tokenizer
        self.added = AddedTokens(tokenizer)
        # Shares the model, which is most of the memory.
        self.plain = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self.plain.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            self.plain.pre_tokenizer = tokenizer.pre_tokenizer

    def encode(self, prompt: PromptText) -> Encoded:
        """Blocks, and releases the GIL meanwhile.

        Without literal ranges and exact spans the ids are those of the tokenizer itself. Between exact spans, text in
        which a literal range spells an added token is encoded by the twin, around the real ones.
        """
        pieces: list[tuple[int, int, TokenIds]] = []
        position = 0
        for span in prompt.exact:
            self._encode_segment(prompt, position, span.start, pieces)
            pieces.append((span.start, span.end, span.ids))
            position = span.end
        self._encode_segment(prompt, position, len(prompt.text), pieces)
        ids = np.concatenate([np.empty(0, np.int32), *(piece[2] for piece in pieces)])
        lengths = [len(piece[2]) for piece in pieces]
        return Encoded(
            prompt,
            ids,
            encoded_tokens=len(ids) - sum(len(span.ids) for span in prompt.exact),
            reused_tokens=0,
            piece_chars=np.array([*(piece[0] for piece in pieces), len(prompt.text)], np.int64),
            piece_tokens=np.cumsum([0, *lengths], dtype=np.int64),
            locate=self.locate,
        )

    def is_as_spelt(self, prompt: PromptText, start: int, end: int) -> bool:
        """Whether the tokenizer finds no added token in ``[start, end)`` but the real ones."""
        return not prompt.literals or real_tokens(prompt, self.added, start, end) == self.added.find(
            prompt.text, start, end
        )

    def locate(self, prompt: PromptText, start: int, end: int) -> list[tuple[int, int]]:
        """Characters of each token of ``[start, end)``, which was encoded apart, counted from ``start``."""
        tokenizer = self.tokenizer if self.is_as_spelt(prompt, start, end) else self.plain
        return tokenizer.encode_batch([prompt.text[start:end]], add_special_tokens=False)[0].offsets

    def _encode_segment(
        self, prompt: PromptText, start: int, end: int, pieces: list[tuple[int, int, TokenIds]]
    ) -> None:
        if start == end:
            return
        if self.is_as_spelt(prompt, start, end):
            pieces.append((start, end, encode_text(self.tokenizer, prompt.text[start:end])))
            return
        for match_start, match_end, token_id in real_tokens(prompt, self.added, start, end):
            if start < match_start:
                pieces.append((start, match_start, encode_text(self.plain, prompt.text[start:match_start])))
            pieces.append((match_start, match_end, np.array([token_id], np.int32)))
            start = match_end
        if start < end:
            pieces.append((start, end, encode_text(self.plain, prompt.text[start:end])))


def encode_text(tokenizer: Tokenizer, text: str) -> TokenIds:
    """Blocks, and releases the GIL meanwhile."""
    # encode() would hold the GIL and compute offsets; a batch of several would spread over the library's own threads,
    # which costs a fifth more and takes cores that other requests use.
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, np.int32)
