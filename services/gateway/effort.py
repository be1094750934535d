"""How much the model is to think, as OpenAI's protocols say it."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.fields import Fields

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def read_effort(fields: Fields, key: str) -> conversation_pb2.ReasoningOptions | None:
    """None leaves it to the model. Raises BadRequestError."""
    if fields.values.get(key) is None:
        return None
    effort = fields.one_of(key, _EFFORTS)
    if effort == "none":
        return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_OFF)
    return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_ON, effort=effort)
