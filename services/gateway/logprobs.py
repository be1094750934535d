"""Log-probabilities in the shapes of OpenAI's two completion endpoints.

Bytes that are no whole characters are spelt as escapes, e.g. ``\\xf0\\x9f``.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2


def chat_logprobs(tokens: Iterable[tokenizer_pb2.TokenLogprobs]) -> dict[str, Any]:
    """A chat choice's ``logprobs``."""
    content = [{**_entry(one.sampled), "top_logprobs": [_entry(other) for other in one.top]} for one in tokens]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The older shape; offsets count the characters of the choice's text, from one piece to the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, tokens: Sequence[tokenizer_pb2.TokenLogprobs]) -> dict[str, Any]:
        """Of the next tokens."""
        offsets: list[int] = []
        for one in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(one.sampled.token))
        return {
            "tokens": [_older_spelling(one.sampled.token) for one in tokens],
            "token_logprobs": [one.sampled.logprob for one in tokens],
            "top_logprobs": [_alternatives(one) for one in tokens] if any(one.top for one in tokens) else None,
            "text_offset": offsets,
        }


def _entry(one: tokenizer_pb2.TokenLogprob) -> dict[str, Any]:
    return {"token": _spelling(one.token), "logprob": one.logprob, "bytes": list(one.token)}


def _alternatives(one: tokenizer_pb2.TokenLogprobs) -> dict[str, float]:
    """The likeliest and, where it is none of them, the sampled one."""
    return {_older_spelling(other.token): other.logprob for other in (*one.top, one.sampled)}


def _spelling(token: bytes) -> str:
    return token.decode(errors="backslashreplace")


def _older_spelling(token: bytes) -> str:
    spelt = _spelling(token)
    return spelt if spelt.encode() == token else f"bytes:{spelt}"
