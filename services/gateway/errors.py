"""What the gateway tells clients when a request fails.

    GatewayError
    ├── BadRequestError          400  the body or one of its fields
    │   ├── UnsupportedError     400  understood, but not served
    │   └── ContextLengthError   400  over the model's context
    ├── AuthenticationError      401  no key, or one that is not known
    ├── ModelNotFoundError       404
    ├── NotFoundError            404  a stored response
    ├── PathNotFoundError        404
    ├── MethodNotAllowedError    405
    ├── AnswerCancelledError     409  asked for by the client
    ├── BodyTooLargeError        413
    ├── EncodingError            415  Content-Encoding
    ├── UpgradeRequiredError     426  WebSocket is switched off
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
    anthropic_type: ClassVar[str] = "api_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.param = param

    @property
    def anthropic_status(self) -> int:
        """The HTTP status that Anthropic's API has for it."""
        return self.http_status

    @property
    def headers(self) -> dict[str, str]:
        """Of the HTTP response."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}

    @property
    def retry_after(self) -> int | None:
        """Whole seconds for Retry-After, at least 1; None where trying again makes no sense."""
        if self.http_status not in (429, 503):
            return None
        return max(1, math.ceil(self.retry_after_s or 0))

    def openai_error(self) -> dict[str, Any]:
        """The error object of OpenAI's APIs."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def openai_body(self) -> dict[str, Any]:
        """The error as OpenAI's APIs answer it."""
        return {"error": self.openai_error()}

    def anthropic_body(self, request_id: str) -> dict[str, Any]:
        """The error as Anthropic's API answers it, which has no field of its own for the parameter."""
        return {
            "type": "error",
            "error": {"type": self.anthropic_type, "message": self.anthropic_message},
            "request_id": request_id,
        }

    @property
    def anthropic_message(self) -> str:
        """The message in Anthropic's manner, which begins with the field: ``messages.0.content: …``."""
        if self.param is None:
            return self.message
        path = self.param.replace("[", ".").replace("]", "")
        quoted = f"'{self.param}' "
        return f"{path}: {self.message.removeprefix(quoted)}"


class BadRequestError(GatewayError):
    """The body, or one of its fields, is wrong."""

    status = "INVALID_ARGUMENT"
    http_status = 400
    type = "invalid_request_error"
    anthropic_type = "invalid_request_error"


class UnsupportedError(BadRequestError):
    """A known field asks for what this server does not do."""

    status = "UNIMPLEMENTED"
    code = "unsupported_parameter"


class ContextLengthError(BadRequestError):
    """The prompt is longer than the model's context. Clients recognise the code, and some the wording."""

    status = "OUT_OF_RANGE"
    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None, prompt_tokens: int | None, context_tokens: int | None
    ) -> None:
        """``message`` is used where the counts are not known."""
        self._counts: tuple[int, int] | None = None
        if prompt_tokens is not None and context_tokens is not None and prompt_tokens >= context_tokens:
            self._counts = prompt_tokens, context_tokens
            message = (
                f"This model's maximum context length is {context_tokens} tokens. However, your messages resulted in "
                f"{prompt_tokens} tokens. Please reduce the length of the messages."
            )
        super().__init__(message, param=param)

    @property
    def anthropic_message(self) -> str:
        if self._counts is None:
            return self.message
        prompt_tokens, context_tokens = self._counts
        # One token is kept for the answer.
        return f"prompt is too long: {prompt_tokens} tokens > {context_tokens - 1} maximum"


class AuthenticationError(GatewayError):
    """No API key, or one that is not known or not valid any more."""

    status = "UNAUTHENTICATED"
    http_status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"
    anthropic_type = "authentication_error"

    @property
    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class ModelNotFoundError(GatewayError):
    """No such model."""

    status = "NOT_FOUND"
    http_status = 404
    type = "invalid_request_error"
    code = "model_not_found"
    anthropic_type = "not_found_error"


class NotFoundError(GatewayError):
    """No such stored object, or not this tenant's."""

    status = "NOT_FOUND"
    http_status = 404
    type = "invalid_request_error"
    anthropic_type = "not_found_error"


class PathNotFoundError(GatewayError):
    """No such path."""

    status = "NOT_FOUND"
    http_status = 404
    type = "invalid_request_error"
    code = "unknown_url"
    anthropic_type = "not_found_error"


class MethodNotAllowedError(GatewayError):
    """The path exists, but not with this method."""

    status = "UNIMPLEMENTED"
    http_status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"
    anthropic_type = "invalid_request_error"


class AnswerCancelledError(GatewayError):
    """The client has cancelled the answer by its id."""

    status = "CANCELLED"
    http_status = 409
    type = "invalid_request_error"
    code = "response_cancelled"
    anthropic_type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("The response was cancelled.")


class BodyTooLargeError(GatewayError):
    """More bytes than the gateway reads."""

    status = "INVALID_ARGUMENT"
    http_status = 413
    type = "invalid_request_error"
    code = "request_too_large"
    anthropic_type = "request_too_large"


class EncodingError(GatewayError):
    """A Content-Encoding that is not read."""

    status = "INVALID_ARGUMENT"
    http_status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"
    anthropic_type = "invalid_request_error"


class UpgradeRequiredError(GatewayError):
    """No WebSocket here. Of all refusals, clients fall back to HTTP at once on this one."""

    status = "FAILED_PRECONDITION"
    http_status = 426
    type = "invalid_request_error"
    code = "websocket_disabled"
    anthropic_type = "invalid_request_error"


class RateLimitError(GatewayError):
    """Overloaded. The code is none of those on which Codex gives the turn up (``slow_down`` …)."""

    status = "RESOURCE_EXHAUSTED"
    http_status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    anthropic_type = "rate_limit_error"


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
    anthropic_type = "overloaded_error"

    @property
    def anthropic_status(self) -> int:
        return 529


class DeadlineError(GatewayError):
    """The time an answer may take is over."""

    status = "DEADLINE_EXCEEDED"
    http_status = 504
    code = "timeout"
    anthropic_type = "timeout_error"


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
        case "NOT_FOUND" if failure.reason == "RESPONSE_NOT_FOUND":
            return NotFoundError(failure.message)
        case "OUT_OF_RANGE" if failure.reason == "CONTEXT_LENGTH_EXCEEDED":
            prompt, context = (_count(failure, name) for name in ("prompt_tokens", "context_tokens"))
            return ContextLengthError(
                failure.message, param=field or "input", prompt_tokens=prompt, context_tokens=context
            )
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


def _count(failure: RpcFailure, name: str) -> int | None:
    text = failure.metadata.get(name, "")
    return int(text) if text.isdecimal() else None
