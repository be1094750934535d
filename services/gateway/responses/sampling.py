"""How tokens are to be chosen."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

INCLUDE_LOGPROBS = "message.output_text.logprobs"

_UINT32_MAX = 2**32 - 1
_MAX_TOP_LOGPROBS = 20


def parse_sampling(body: Fields, include: Collection[str]) -> tokenizer_pb2.Sampling:
    """Raises BadRequestError."""
    top_p = body.number("top_p", 0, 1)
    if top_p == 0:
        raise BadRequestError("'top_p' must be over 0 and at most 1.", param="top_p")
    top_logprobs = body.integer("top_logprobs", 0, _MAX_TOP_LOGPROBS) or 0
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=top_p,
        presence_penalty=body.number("presence_penalty", -2, 2) or None,
        frequency_penalty=body.number("frequency_penalty", -2, 2) or None,
        logprobs=top_logprobs if INCLUDE_LOGPROBS in include else None,
        max_tokens=body.integer("max_output_tokens", 1, _UINT32_MAX),
    )
