"""How much the model is to think."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.fields import Fields
from services.gateway.responses.tools import one_of

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def parse_reasoning(body: Fields) -> conversation_pb2.ReasoningOptions | None:
    """None leaves it to the model. Raises BadRequestError."""
    reasoning = body.object("reasoning")
    if reasoning is None:
        return None
    reasoning.text("summary")
    if reasoning.values.get("effort") is None:
        return None
    effort = one_of(reasoning, "effort", _EFFORTS)
    if effort == "none":
        return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_OFF)
    return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_ON, effort=effort)
