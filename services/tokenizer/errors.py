"""Everything that the tokenizer refuses or fails at.

ServiceError
└── TokenizerError
    ├── ModelFileError            a file of the model directory is missing or malformed: ends the start
    ├── KeyFileError              the file of capsule keys is missing or malformed: ends the start
    ├── InvalidRequestError       a value out of range; metadata ``field`` names it
    │   ├── PromptTooLargeError   more bytes than the service encodes
    │   └── TemplateError         the model's chat template refuses the conversation
    ├── UnknownResponseError      ExplainPrefix: no such answer is remembered
    ├── UnknownModelError         no such model here
    ├── UnsupportedError          in the contract, not in this version
    ├── ContextLengthError        the prompt leaves no room to answer
    ├── OverloadedError           too many prompts wait to be encoded
    ├── EncodeTimeoutError        the caller's deadline passed before the prompt was encoded
    ├── NoEngineError             no engine takes the request
    └── EngineLostError           an engine died after it had begun to answer
"""

from typing import ClassVar

from services.errors import ServiceError


class TokenizerError(ServiceError):
    """Root of this service's errors."""


class ModelFileError(TokenizerError):
    """One line that names the file."""

    status: ClassVar[str] = "FAILED_PRECONDITION"
    reason: ClassVar[str] = "MODEL_FILE"


class KeyFileError(TokenizerError):
    """One line that names the file and the line in it, and never shows a key."""

    status: ClassVar[str] = "FAILED_PRECONDITION"
    reason: ClassVar[str] = "KEY_FILE"


class InvalidRequestError(TokenizerError):
    """A field of the request cannot be used."""

    status: ClassVar[str] = "INVALID_ARGUMENT"
    reason: ClassVar[str] = "INVALID_FIELD"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, metadata={"field": field})


class PromptTooLargeError(InvalidRequestError):
    """The prompt has more bytes than the service encodes."""

    reason: ClassVar[str] = "PROMPT_TOO_LARGE"


class TemplateError(InvalidRequestError):
    """The message is the chat template's own."""

    reason: ClassVar[str] = "TEMPLATE_REFUSED"


class UnknownModelError(TokenizerError):
    """Names what was asked for and what is served."""

    status: ClassVar[str] = "NOT_FOUND"
    reason: ClassVar[str] = "MODEL_NOT_FOUND"

    def __init__(self, model: str, served: tuple[str, ...]) -> None:
        names = ", ".join(served)
        super().__init__(
            f"model {model!r} is not served here; served: {names}", metadata={"model": model, "served": names}
        )


class UnknownResponseError(TokenizerError):
    """No answer of this id is remembered."""

    status: ClassVar[str] = "NOT_FOUND"
    reason: ClassVar[str] = "RESPONSE_NOT_FOUND"


class UnsupportedError(TokenizerError):
    """The contract knows it, this version does not."""

    status: ClassVar[str] = "UNIMPLEMENTED"
    reason: ClassVar[str] = "NOT_SUPPORTED"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message, metadata={"field": field})


class ContextLengthError(TokenizerError):
    """The prompt fills or exceeds the context."""

    status: ClassVar[str] = "OUT_OF_RANGE"
    reason: ClassVar[str] = "CONTEXT_LENGTH_EXCEEDED"

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(
            f"This model's maximum context length is {context_tokens} tokens; the prompt has {prompt_tokens} tokens",
            metadata={"prompt_tokens": str(prompt_tokens), "context_tokens": str(context_tokens)},
        )


class OverloadedError(TokenizerError):
    """Carries an estimate of when there is room again."""

    status: ClassVar[str] = "RESOURCE_EXHAUSTED"
    reason: ClassVar[str] = "ENCODE_QUEUE_FULL"


class EncodeTimeoutError(TokenizerError):
    """The deadline passed first."""

    status: ClassVar[str] = "DEADLINE_EXCEEDED"
    reason: ClassVar[str] = "ENCODE_TIMEOUT"


class NoEngineError(TokenizerError):
    """Says why none did; metadata ``engines`` says it of each address."""

    status: ClassVar[str] = "UNAVAILABLE"
    reason: ClassVar[str] = "NO_ENGINE"


class EngineLostError(TokenizerError):
    """The answer so far is incomplete."""

    status: ClassVar[str] = "UNAVAILABLE"
    reason: ClassVar[str] = "ENGINE_LOST"
