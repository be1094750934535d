"""The root of every service's error tree.

    ServiceError
    ├── services.gateway.errors.…
    ├── services.tokenizer.errors.…
    ├── services.engine.errors.…
    ├── services.kvstore.errors.…
    └── services.models.errors.…

An error is raised where it happens and translated once, by ``services.rpc.ErrorInterceptor`` or by a protocol's own
error shape. Domain modules need no gRPC to say what status an error has.
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """Something a caller is told about.

    ``status`` is the name of a gRPC status code; ``reason`` is stable, for programs; the message is for people.
    ``metadata`` travels with the reason (e.g. ``field``); ``retry_after_s`` says when trying again makes sense.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self, message: str, *, metadata: dict[str, str] | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s
