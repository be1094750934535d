"""GET /v1/models: one shape that the SDKs of both OpenAI and Anthropic read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2


def model_list(models: Sequence[tokenizer_pb2.Model]) -> dict[str, Any]:
    """All models, on one page."""
    return {
        "object": "list",
        "data": [model_object(model) for model in models],
        "has_more": False,
        "first_id": models[0].id if models else None,
        "last_id": models[-1].id if models else None,
    }


def model_object(model: tokenizer_pb2.Model) -> dict[str, Any]:
    """One model; ``aliases`` are other names for it, patterns among them."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "fencepost",
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_s, UTC).isoformat().replace("+00:00", "Z"),
        "max_model_len": model.context_tokens,
        "aliases": list(model.aliases),
    }
