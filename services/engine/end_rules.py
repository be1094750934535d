"""What ends an output: the model's own end, stop ids and texts, limits, a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.engine.request import FinishReason, Sampled
from services.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class EndRules:
    """What ends an output beside the request's own limits."""

    end_token_ids: frozenset[int]
    context_tokens: int
    spell: Callable[[int], bytes]  # bytes of a token for stop texts; b"" for special tokens

    def push(self, sequence: Sequence, sampled: Sampled) -> None:
        """Add a token to an output, and say in its ``finish_reason`` if it was the last one."""
        token_id = sampled.token_id
        sequence.append(token_id)
        sampling = sequence.request.sampling
        sequence.stop_hit = sequence.stop.push(b"" if sampled.is_inside else self.spell(token_id))
        is_end = token_id in self.end_token_ids and not sampling.ignore_end
        if not sampled.is_inside and (is_end or token_id in sampling.stop_token_ids):
            sequence.finish_reason = FinishReason.STOP
        elif sequence.stop_hit is not None:
            sequence.finish_reason = FinishReason.STOP_TEXT
        elif sequence.num_output >= sequence.max_tokens or sequence.num_tokens >= self.context_tokens:
            sequence.finish_reason = FinishReason.LENGTH
        elif sampled.is_loop:
            sequence.finish_reason = FinishReason.LOOP
