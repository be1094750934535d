"""How tokens are to be chosen."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.fields import Fields
from services.gateway.sampling import over_zero

INCLUDE_LOGPROBS = "message.output_text.logprobs"

_UINT32_MAX = 2**32 - 1
_MAX_TOP_LOGPROBS = 20


def parse_sampling(body: Fields, include: Collection[str]) -> tokenizer_pb2.Sampling:
    """Raises BadRequestError."""
    top_logprobs = body.integer("top_logprobs", 0, _MAX_TOP_LOGPROBS) or 0
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=over_zero(body, "top_p", 1),
        presence_penalty=body.number("presence_penalty", -2, 2) or None,
        frequency_penalty=body.number("frequency_penalty", -2, 2) or None,
        logprobs=top_logprobs if INCLUDE_LOGPROBS in include else None,
        max_tokens=body.integer("max_output_tokens", 1, _UINT32_MAX),
    )
