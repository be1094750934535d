"""A prompt at the cost of its tail where only the seam vouches for it: for tokenizers that are not certified."""

import numpy as np

from services.tokenizer.rope.anchors import AnchorCache
from services.tokenizer.rope.encoded import Encoded
from services.tokenizer.rope.prompt_text import PromptText, TokenIds
from services.tokenizer.rope.seam import Seam, SeamSplice
from services.tokenizer.rope.statistics import CacheStatistics, Occupancy
from services.tokenizer.rope.whole import WholeEncoder


class SplicedEncoder:
    """Any thread may call."""

    def __init__(
        self, whole: WholeEncoder, splice: SeamSplice, entries: int, max_chars: int, statistics: CacheStatistics
    ) -> None:
        self._whole = whole
        self._splice = splice
        self._seams: AnchorCache[Seam] = AnchorCache(entries, max_chars)
        self._statistics = statistics

    def occupancy(self) -> Occupancy:
        """What is held."""
        return Occupancy(len(self._seams), self._seams.num_chars, 0, 0)

    def encode(self, prompt: PromptText, anchor_key: str | None) -> Encoded:
        """The ids of the slow twin, which serves whatever is not plain text throughout."""
        text = prompt.text
        if anchor_key is None or prompt.exact or not self._whole.is_as_spelt(prompt, 0, len(text)):
            return self._whole.encode(prompt)
        seam = self._seams.get(anchor_key)
        reused_tokens = 0
        extended = None
        if seam is not None and text.startswith(seam.text):
            extended = self._splice.extend(seam, text)
            if extended is None:
                self._statistics.count_resync_fallback()
            else:
                reused_tokens = seam.first_token
        ids, new_seam = self._splice.begin(text) if extended is None else extended
        if new_seam is not None:
            self._seams.put(anchor_key, new_seam)
        return self._encoded(prompt, ids, reused_tokens)

    def _encoded(self, prompt: PromptText, ids: TokenIds, reused_tokens: int) -> Encoded:
        return Encoded(
            prompt,
            ids,
            encoded_tokens=len(ids) - reused_tokens,
            reused_tokens=reused_tokens,
            piece_chars=np.array([0, len(prompt.text)], np.int64),
            piece_tokens=np.array([0, len(ids)], np.int64),
            locate=self._whole.locate,
        )
