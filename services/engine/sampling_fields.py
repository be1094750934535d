"""Reads the contract's Sampling within its ranges."""

from __future__ import annotations

import math
from typing import Literal

from fencepost.engine.v1 import engine_pb2 as pb

from services.engine.errors import InvalidRequest
from services.engine.request import SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20

_MAX_STOP_TEXTS = 64
_MAX_STOP_BYTES = 4096

_Number = Literal["temperature", "min_p", "presence_penalty", "frequency_penalty", "logprobs", "choices"]


def read_sampling(message: pb.Sampling, vocabulary_size: int) -> SamplingParams:
    """Raises InvalidRequest naming the field; NaN is out of every range."""
    if message.HasField("top_p") and not 0 < message.top_p <= 1:
        raise InvalidRequest("sampling.top_p", "must be over 0 and at most 1")
    if message.HasField("repetition_penalty") and not 0 < message.repetition_penalty < math.inf:
        raise InvalidRequest("sampling.repetition_penalty", "must be a number over 0")
    for name in ("top_k", "max_tokens"):
        if message.HasField(name) and getattr(message, name) < 1:
            raise InvalidRequest(f"sampling.{name}", "must be at least 1")
    if len(message.stop_texts) > _MAX_STOP_TEXTS:
        raise InvalidRequest("sampling.stop_texts", f"at most {_MAX_STOP_TEXTS}")
    if not all(0 < len(text) <= _MAX_STOP_BYTES for text in message.stop_texts):
        raise InvalidRequest("sampling.stop_texts", f"each must have 1 to {_MAX_STOP_BYTES} bytes")
    return SamplingParams(
        temperature=_number(message, "temperature", 0, 2, 1.0),
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k if message.HasField("top_k") else None,
        min_p=_number(message, "min_p", 0, 1, 0.0),
        presence_penalty=_number(message, "presence_penalty", -2, 2, 0.0),
        frequency_penalty=_number(message, "frequency_penalty", -2, 2, 0.0),
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        logit_bias=_logit_bias(message, vocabulary_size),
        logprobs=int(_number(message, "logprobs", 0, MAX_LOGPROBS, 0)) if message.HasField("logprobs") else None,
        choices=int(_number(message, "choices", 1, MAX_CHOICES, 1)),
        seed=message.seed if message.HasField("seed") else None,
        stop_texts=tuple(message.stop_texts),
        stop_token_ids=frozenset(message.stop_token_ids),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        ignore_end=message.ignore_end,
    )


def _number(message: pb.Sampling, name: _Number, minimum: float, maximum: float, absent: float) -> float:
    if not message.HasField(name):
        return absent
    value: float = getattr(message, name)
    if not minimum <= value <= maximum:
        raise InvalidRequest(f"sampling.{name}", f"must be from {minimum:g} to {maximum:g}, got {value:g}")
    return value


def _logit_bias(message: pb.Sampling, vocabulary_size: int) -> dict[int, float]:
    bias = dict(message.logit_bias)
    for token_id, value in bias.items():
        if token_id >= vocabulary_size:
            raise InvalidRequest("sampling.logit_bias", f"ids are 0 to {vocabulary_size - 1}, got {token_id}")
        if not -100 <= value <= 100:
            raise InvalidRequest("sampling.logit_bias", f"must be from -100 to 100, got {value:g} for {token_id}")
    return bias
