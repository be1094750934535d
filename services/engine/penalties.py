"""What a request adds to the model's logits: penalties for tokens that have come, and biases.

    repetition penalty → frequency and presence penalties → bias

The repetition penalty scales the model's own logits, so it comes first; the others are added, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.engine.request import SamplingParams


@dataclass(slots=True)
class _Seen:
    """Tokens that have come, by id [vocabulary]: how often in the output, and whether at all."""

    counts: npt.NDArray[np.int64]
    anywhere: npt.NDArray[np.bool_]


class Penalties:
    """One choice's. ``adjust`` and ``count`` alternate, once per sampled token."""

    def __init__(self, params: SamplingParams, prompt_ids: bytes) -> None:
        """``prompt_ids`` are int32 little-endian. All ids are of the vocabulary."""
        self._params = params
        self._prompt_ids = np.frombuffer(prompt_ids, dtype="<i4")
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.intp)
        self._biases = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self._seen: _Seen | None = None

    @staticmethod
    def are_asked(params: SamplingParams) -> bool:
        """Whether they change anything."""
        return bool(
            params.logit_bias or params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        )

    def adjust(self, logits: npt.NDArray[np.float64]) -> None:
        """Change ``logits`` [vocabulary] in place."""
        params, seen = self._params, self._seen_in(len(logits))
        if params.repetition_penalty != 1:
            # Keskar et al. 2019, but negative logits are multiplied: over prompt and output, however often.
            values, penalty = logits[seen.anywhere], params.repetition_penalty
            logits[seen.anywhere] = np.where(values > 0, values / penalty, values * penalty)
        if params.frequency_penalty or params.presence_penalty:
            # OpenAI's definition: over the output only.
            logits -= params.frequency_penalty * seen.counts + params.presence_penalty * (seen.counts > 0)
        logits[self._bias_ids] += self._biases

    def count(self, token_id: int) -> None:
        """A token was chosen."""
        assert self._seen is not None
        self._seen.counts[token_id] += 1
        self._seen.anywhere[token_id] = True

    def _seen_in(self, vocabulary_size: int) -> _Seen:
        if self._seen is None:
            anywhere = np.zeros(vocabulary_size, dtype=np.bool_)
            anywhere[self._prompt_ids] = True
            self._seen = _Seen(np.zeros(vocabulary_size, dtype=np.int64), anywhere)
        return self._seen
