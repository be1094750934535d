"""What the gateway tells clients when a request fails.

    GatewayError
    ├── BadRequestError          400  the body or one of its fields
    │   ├── UnsupportedError     400  understood, but not served
    │   └── ContextLengthError   400  over the model's context
    ├── ModelNotFoundError       404
    ├── PathNotFoundError        404
    ├── MethodNotAllowedError    405
    ├── BodyTooLargeError        413
    ├── EncodingError            415  Content-Encoding
    ├── RateLimitError           429  overloaded; with Retry-After
    ├── InternalError            500  our bug; the log has the details
    ├── UnavailableError         503  a service behind is down; with Retry-After
    └── DeadlineError            504  took too long

A failed call to the tokenizer becomes one of these in ``from_failure``, and nowhere else.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from services.errors import ServiceError
from services.rpc import RpcFailure


class GatewayError(ServiceError):
    """A failure with its HTTP status; ``param`` names the offending field of the body, as the client spelt it."""

    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.param = param

    @property
    def retry_after(self) -> int | None:
        """Whole seconds for Retry-After, at least 1; None where trying again makes no sense."""
        if self.http_status not in (429, 503):
            return None
        return max(1, math.ceil(self.retry_after_s or 0))

    def openai_body(self) -> dict[str, Any]:
        """The error as OpenAI's APIs write it."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequestError(GatewayError):
    """The body, or one of its fields, is wrong."""

    status = "INVALID_ARGUMENT"
    http_status = 400
    type = "invalid_request_error"


class UnsupportedError(BadRequestError):
    """A known field asks for what this server does not do."""

    status = "UNIMPLEMENTED"
    code = "unsupported_parameter"


class ContextLengthError(BadRequestError):
    """The prompt is longer than the model's context. Clients recognise the code, and some the wording."""

    status = "OUT_OF_RANGE"
    code = "context_length_exceeded"


class ModelNotFoundError(GatewayError):
    """No such model."""

    status = "NOT_FOUND"
    http_status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class PathNotFoundError(GatewayError):
    """No such path."""

    status = "NOT_FOUND"
    http_status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowedError(GatewayError):
    """The path exists, but not with this method."""

    status = "UNIMPLEMENTED"
    http_status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTooLargeError(GatewayError):
    """More bytes than the gateway reads."""

    status = "INVALID_ARGUMENT"
    http_status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class EncodingError(GatewayError):
    """A Content-Encoding that is not read."""

    status = "INVALID_ARGUMENT"
    http_status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class RateLimitError(GatewayError):
    """Overloaded. The code is none of those on which Codex gives the turn up (``slow_down`` …)."""

    status = "RESOURCE_EXHAUSTED"
    http_status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class InternalError(GatewayError):
    """Our own bug; clients learn nothing of its inside."""

    http_status = 500

    def __init__(self) -> None:
        super().__init__("The server failed; its log has the details.")


class UnavailableError(GatewayError):
    """A service that is needed does not answer."""

    status = "UNAVAILABLE"
    http_status = 503
    code = "service_unavailable"


class DeadlineError(GatewayError):
    """The time an answer may take is over."""

    status = "DEADLINE_EXCEEDED"
    http_status = 504
    code = "timeout"


def from_failure(failure: RpcFailure) -> GatewayError:
    """What a client is told when the tokenizer answered with ``failure``."""
    field = failure.metadata.get("field")
    match failure.code.name:
        case "INVALID_ARGUMENT":
            return BadRequestError(failure.message, param=field)
        case "UNIMPLEMENTED":
            return UnsupportedError(failure.message, param=field)
        case "NOT_FOUND" if failure.reason == "MODEL_NOT_FOUND":
            return ModelNotFoundError(failure.message, param="model")
        case "OUT_OF_RANGE" if failure.reason == "CONTEXT_LENGTH_EXCEEDED":
            return ContextLengthError(_context_message(failure), param=field or "input")
        case "RESOURCE_EXHAUSTED":
            return RateLimitError(failure.message, retry_after_s=failure.retry_after_s)
        case "UNAVAILABLE" | "CANCELLED":
            # Without a reason it is the transport that speaks, of sockets and addresses that are no client's business.
            message = failure.message if failure.reason else "The tokenizer service does not answer; try again shortly."
            return UnavailableError(message, retry_after_s=failure.retry_after_s)
        case "DEADLINE_EXCEEDED":
            return DeadlineError("The answer took longer than this server allows.")
        case _:
            return InternalError()


def _context_message(failure: RpcFailure) -> str:
    """OpenAI's own wording, by which clients without an eye for codes know to compact."""
    prompt, context = failure.metadata.get("prompt_tokens", ""), failure.metadata.get("context_tokens", "")
    if not (prompt.isdecimal() and context.isdecimal()) or int(prompt) <= int(context):
        return failure.message
    return (
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {prompt} tokens. "
        "Please reduce the length of the messages."
    )
