"""GET /v1/models: one shape that the SDKs of both OpenAI and Anthropic read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.errors import ModelNotFoundError


def model_list(models: Sequence[tokenizer_pb2.Model]) -> dict[str, Any]:
    """All models, on one page."""
    return {
        "object": "list",
        "data": [_model(model) for model in models],
        "has_more": False,
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
    }


def model_named(models: Sequence[tokenizer_pb2.Model], name: str) -> dict[str, Any]:
    """The model with this id or alias. Raises ModelNotFoundError."""
    for model in models:
        if name == model.id or name in model.aliases:
            return _model(model)
    raise ModelNotFoundError(f"The model '{name}' does not exist.", param="model")


def _model(model: tokenizer_pb2.Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "fencepost",
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_s, UTC).isoformat().replace("+00:00", "Z"),
        "max_model_len": model.context_tokens,
    }
