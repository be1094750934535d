"""How tokens are to be chosen: the fields that OpenAI's completion endpoints have in common.

Beside OpenAI's own, the widespread ``top_k``, ``min_p`` and ``repetition_penalty``.
"""

from __future__ import annotations

import re
from typing import Any, cast

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, kind_of, wrong

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_REPETITION_PENALTY = 100

_UINT32_MAX = 2**32 - 1
_ID = re.compile("[0-9]{1,10}")


def parse(body: Fields) -> tokenizer_pb2.Sampling:
    """All but the log-probabilities, which each endpoint asks for in its own way. Raises BadRequestError."""
    older, newer = (body.integer(name, 1, _UINT32_MAX) for name in ("max_tokens", "max_completion_tokens"))
    seed = body.integer("seed", -(2**63), 2**63 - 1)
    choices = body.integer("n", 1, MAX_CHOICES)
    repetition_penalty = over_zero(body, "repetition_penalty", MAX_REPETITION_PENALTY)
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=over_zero(body, "top_p", 1),
        # Servers that know it take 0 or −1 for off.
        top_k=max(body.integer("top_k", -1, _UINT32_MAX) or 0, 0) or None,
        min_p=body.number("min_p", 0, 1) or None,
        presence_penalty=body.number("presence_penalty", -2, 2) or None,
        frequency_penalty=body.number("frequency_penalty", -2, 2) or None,
        repetition_penalty=None if repetition_penalty == 1 else repetition_penalty,
        logit_bias=_logit_bias(body),
        choices=None if choices == 1 else choices,
        max_tokens=older if newer is None else newer,
        # Two's complement: every signed seed has an unsigned one of its own.
        seed=None if seed is None else seed % 2**64,
        stop_texts=_stops(body),
    )


def chat_logprobs(body: Fields) -> int | None:
    """How many alternatives a chat request wants beside each token's log-probability; None for neither.

    Raises BadRequestError.
    """
    is_wanted, count = body.flag("logprobs"), body.integer("top_logprobs", 0, MAX_LOGPROBS)
    if is_wanted:
        return count or 0
    if count:
        raise BadRequestError("'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs")
    return None


def completion_logprobs(body: Fields) -> int | None:
    """The same of the older protocol, where one number says both. Raises BadRequestError."""
    return body.integer("logprobs", 0, MAX_LOGPROBS)


def over_zero(body: Fields, key: str, maximum: float) -> float | None:
    """A number in (0, maximum]; None where it is absent. Raises BadRequestError."""
    value = body.number(key, 0, maximum)
    if value == 0:
        raise BadRequestError(f"'{key}' must be over 0 and at most {maximum}.", param=key)
    return value


def _logit_bias(body: Fields) -> dict[int, float]:
    """Keys are token ids written as text."""
    fields = body.object("logit_bias")
    biases: dict[int, float] = {}
    for key, value in ({} if fields is None else fields.values).items():
        if not (_ID.fullmatch(key) and int(key) <= _UINT32_MAX):
            raise BadRequestError(f"'logit_bias' must have token ids as keys, not {key[:40]!r}.", param="logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequestError(
                f"'logit_bias' must hold numbers, not {kind_of(value)} for {key}.", param="logit_bias"
            )
        if not -100 <= value <= 100:
            raise BadRequestError(
                f"'logit_bias' must hold numbers from -100 to 100, not {value} for {key}.", param="logit_bias"
            )
        biases[int(key)] = value
    return biases


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
