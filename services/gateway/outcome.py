"""How OpenAI's completion endpoints show the end of an answer: why it ended, what it cost, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway import cached
from services.gateway.errors import UnavailableError

# A loop that the guard ended has ended: asked to go on, the model would go round again. A warning says so.
_FINISH_REASONS = {
    tokenizer_pb2.FINISH_REASON_STOP: "stop",
    tokenizer_pb2.FINISH_REASON_STOP_TEXT: "stop",
    tokenizer_pb2.FINISH_REASON_LENGTH: "length",
    tokenizer_pb2.FINISH_REASON_LOOP: "stop",
    tokenizer_pb2.FINISH_REASON_CALLS: "tool_calls",
}


def finish_reason(finished: tokenizer_pb2.Finished) -> str:
    """Raises UnavailableError for an answer that was given up."""
    reason = _FINISH_REASONS.get(finished.reason)
    if reason is None:
        raise UnavailableError("The server gave this answer up; try again.")
    return reason


def warnings(finished: Iterable[tokenizer_pb2.Finished]) -> dict[str, Any]:
    """What the answer's readers should know, as fields beside the protocol's own; each warning once."""
    found = list(dict.fromkeys(warning for one in finished for warning in one.warnings))
    return {"fencepost": {"warnings": found}} if found else {}


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
