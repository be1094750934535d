"""An answer's thinking with its exact ids, for the capsule that a client brings back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.tokenizer.detokenize import decode
from services.tokenizer.history.record import Record
from services.vocabulary import Vocabulary

_CLOSING = "</think>"


def record_of_thought(
    ids: Sequence[int], text: str, reasoning: str, vocabulary: Vocabulary, hidden_ids: frozenset[int]
) -> Record:
    """The beginning of an answer, up to the end of its thinking and the tag that closes it.

    ``text`` is what ``ids`` have come to so far, without ``hidden_ids`` and what is held back. Ids that reach beyond
    the tag are left out. A record without ids and text still has its ``reasoning``.
    """
    end = text.find(reasoning) + len(reasoning)
    tag = text.find(_CLOSING, end)
    if tag >= 0 and not text[end:tag].strip():
        end = tag + len(_CLOSING)
    num_left = len(text[:end].encode())
    num_ids = 0
    for token_id in ids:
        num_bytes = 0 if token_id in hidden_ids else len(vocabulary.spell(token_id))
        if num_left == 0 or num_bytes > num_left:
            break
        num_left -= num_bytes
        num_ids += 1
    spelt = decode(vocabulary, ids[:num_ids])
    if not text.startswith(spelt):
        # A control token, or bytes that are no UTF-8: the client has another text.
        num_ids, spelt = 0, ""
    return Record(spelt, np.array(ids[:num_ids], dtype=np.int32), "", reasoning, ())
