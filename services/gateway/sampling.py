"""How tokens are to be chosen: the fields that OpenAI's completion endpoints have in common."""

from __future__ import annotations

from typing import Any, cast

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong

MAX_STOPS = 16

_UINT32_MAX = 2**32 - 1


def parse(body: Fields) -> tokenizer_pb2.Sampling:
    """Raises BadRequestError, and UnsupportedError for what is known but not served."""
    _refuse_unsupported(body)
    top_p = body.number("top_p", 0, 1)
    if top_p == 0:
        raise BadRequestError("'top_p' must be over 0 and at most 1.", param="top_p")
    older, newer = (body.integer(name, 1, _UINT32_MAX) for name in ("max_tokens", "max_completion_tokens"))
    seed = body.integer("seed", -(2**63), 2**63 - 1)
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=top_p,
        max_tokens=older if newer is None else newer,
        # Two's complement: every signed seed has an unsigned one of its own.
        seed=None if seed is None else seed % 2**64,
        stop_texts=_stops(body),
    )


def _refuse_unsupported(body: Fields) -> None:
    body.integer("n", 1, _UINT32_MAX)
    body.refuse("n", 1)
    body.refuse("logprobs", False)
    body.refuse("top_logprobs", 0)
    body.refuse("logit_bias", {})
    for name in ("presence_penalty", "frequency_penalty"):
        body.refuse(name, 0)
    for name in ("top_k", "min_p", "repetition_penalty"):
        body.refuse(name)


def _stops(body: Fields) -> list[str]:
    value = body.values.get("stop")
    if value is None:
        return []
    stops = cast(list[Any], value) if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"'stop' must hold at most {MAX_STOPS} texts, not {len(stops)}.", param="stop")
    for index, stop in enumerate(stops):
        name = f"stop[{index}]" if isinstance(value, list) else "stop"
        if not isinstance(stop, str):
            raise wrong(name, "a string" if isinstance(value, list) else "a string or a list of strings", stop)
        if not stop:
            raise BadRequestError(f"'{name}' must not be empty.", param=name)
    return stops
