"""What the engine tells its callers.

ServiceError
└── EngineError
    ├── InvalidRequest         INVALID_ARGUMENT     a value out of range, `field` says which
    ├── ContextExceeded        OUT_OF_RANGE         the prompt leaves no room in the context
    ├── Unsupported            UNIMPLEMENTED        a feature this engine lacks
    ├── Overloaded             RESOURCE_EXHAUSTED   the queue is full; carries a retry delay
    ├── StoreFailed            UNAVAILABLE          the disk tier did not do what was asked for
    ├── Draining               UNAVAILABLE          shutting down; try another replica
    └── ModelUnusable          FAILED_PRECONDITION  the start fails: files, sizes or devices
"""

from __future__ import annotations

from services.errors import ServiceError


class EngineError(ServiceError):
    """Root of the engine's errors."""


class InvalidRequest(EngineError):
    """A field of the request cannot be used."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}", metadata={"field": field})


class ContextExceeded(EngineError):
    """The prompt and one more token do not fit the context."""

    status = "OUT_OF_RANGE"
    reason = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"the context holds {context_tokens} tokens; the prompt has {prompt_tokens}",
            metadata={"prompt_tokens": str(prompt_tokens), "context_tokens": str(context_tokens)},
        )


class Unsupported(EngineError):
    """The request asks for something this engine does not do."""

    status = "UNIMPLEMENTED"
    reason = "UNSUPPORTED"

    def __init__(self, field: str) -> None:
        super().__init__(f"{field} is not supported by this engine", metadata={"field": field})


class Overloaded(EngineError):
    """Too many requests wait."""

    status = "RESOURCE_EXHAUSTED"
    reason = "OVERLOADED"


class StoreFailed(EngineError):
    """The store does not answer, where nothing can be done without it."""

    status = "UNAVAILABLE"
    reason = "STORE_UNAVAILABLE"


class Draining(EngineError):
    """The engine is shutting down."""

    status = "UNAVAILABLE"
    reason = "DRAINING"


class ModelUnusable(EngineError):
    """The model cannot be served as configured."""

    status = "FAILED_PRECONDITION"
    reason = "MODEL_UNUSABLE"
