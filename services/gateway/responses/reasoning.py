"""How much the model is to think."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.effort import read_effort
from services.gateway.fields import Fields


def parse_reasoning(body: Fields) -> conversation_pb2.ReasoningOptions | None:
    """None leaves it to the model. Raises BadRequestError."""
    reasoning = body.object("reasoning")
    if reasoning is None:
        return None
    reasoning.text("summary")
    return read_effort(reasoning, "effort")
