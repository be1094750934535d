"""How tokens are chosen: what a request asks for, within its ranges, over the model's own defaults."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.tokenizer.errors import InvalidRequestError

MAX_STOP_TEXTS = 64
MAX_STOP_BYTES = 1024
"""Matching costs time per sampled byte and stop text, so both are bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None leaves a value to the model's defaults, then to the engine's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    logprobs: int | None = None
    stop_texts: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    choices: int | None = None

    def check(self) -> None:
        """Raise InvalidRequestError naming the first field that is out of range; NaN is out of every range."""
        _check_range("temperature", self.temperature, 0, 2)
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_range("logprobs", self.logprobs, 0, 20)
        for bias in self.logit_bias.values():
            _check_range("logit_bias", bias, -100, 100)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _refused("top_p", f"must be over 0 and at most 1, got {self.top_p:g}")
        if self.repetition_penalty is not None and not 0 < self.repetition_penalty < float("inf"):
            raise _refused("repetition_penalty", f"must be a number over 0, got {self.repetition_penalty:g}")
        for name in ("top_k", "max_tokens", "choices"):
            if getattr(self, name) == 0:
                raise _refused(name, "must be at least 1, got 0")
        self._check_stop_texts()

    def _check_stop_texts(self) -> None:
        if len(self.stop_texts) > MAX_STOP_TEXTS:
            raise _refused("stop_texts", f"has {len(self.stop_texts)} texts; at most {MAX_STOP_TEXTS} are allowed")
        for text in self.stop_texts:
            if not text:
                raise _refused("stop_texts", "must not contain an empty text")
            if len(text.encode()) > MAX_STOP_BYTES:
                raise _refused("stop_texts", f"has a text of more than {MAX_STOP_BYTES} bytes")

    def over(self, defaults: "Sampling") -> "Sampling":
        """These values, and the model's default temperature, top_p and top_k where there is none."""
        return dataclasses.replace(
            self,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            top_k=defaults.top_k if self.top_k is None else self.top_k,
        )


def _check_range(name: str, value: float | None, minimum: float, maximum: float) -> None:
    if value is not None and not minimum <= value <= maximum:
        raise _refused(name, f"must be between {minimum:g} and {maximum:g}, got {value:g}")


def _refused(name: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"sampling.{name}", f"{name} {what}")
