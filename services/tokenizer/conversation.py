"""The conversation as the tokenizer sees it: messages, calls and tools, in order, their texts untouched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from services.tokenizer.dialects.events import ToolSpec


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolMode(Enum):
    """Whether the model may call tools."""

    NONE = auto()
    AUTO = auto()


@dataclass(frozen=True, slots=True)
class Call:
    """A call the model made, as the client echoes it."""

    call_id: str
    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of one speaker.

    ``reasoning`` and ``calls`` belong to assistants, ``call_id`` and ``is_error`` to results. ``capsules`` are opaque
    bytes from an earlier answer.
    """

    role: Role
    content: str
    name: str | None = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    is_error: bool = False
    capsules: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything the model is to see; at least one message."""

    messages: tuple[Message, ...]
    template_options: Mapping[str, object]
    """Further variables of the chat template, plain JSON values."""
    tools: tuple[ToolSpec, ...] = ()
    tool_mode: ToolMode = ToolMode.AUTO
    parallel_calls: bool = True
    enable_thinking: bool | None = field(default=None)
    """None leaves it to the template."""
