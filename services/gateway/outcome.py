"""How OpenAI's completion endpoints show the end of an answer: why it ended, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway import cached
from services.gateway.errors import UnavailableError

# A loop that the guard ended is an answer cut short.
_FINISH_REASONS = {
    tokenizer_pb2.FINISH_REASON_STOP: "stop",
    tokenizer_pb2.FINISH_REASON_STOP_TEXT: "stop",
    tokenizer_pb2.FINISH_REASON_LENGTH: "length",
    tokenizer_pb2.FINISH_REASON_LOOP: "length",
    tokenizer_pb2.FINISH_REASON_CALLS: "tool_calls",
}


def finish_reason(finished: tokenizer_pb2.Finished) -> str:
    """Raises UnavailableError for an answer that was given up."""
    reason = _FINISH_REASONS.get(finished.reason)
    if reason is None:
        raise UnavailableError("The server gave this answer up; try again.")
    return reason


def usage(usages: Sequence[tokenizer_pb2.Usage]) -> dict[str, Any]:
    """OpenAI's numbers, and beside them the tiers that the cached tokens came from.

    ``usages`` are those of all choices, at least one: each counts the same prompt and its own output.
    """
    counted = usages[0]
    output_tokens = sum(one.output_tokens for one in usages)
    tokens_by_tier = cached.tokens_by_tier(counted.cached)
    return {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": counted.prompt_tokens + output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(tokens_by_tier.values()),
            **cached.details(counted),
        },
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in usages)},
    }
