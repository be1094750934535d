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
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class Call:
    """A call the model made, as the client echoes it."""

    call_id: str
    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of thinking as a client sends it back: its text, a capsule of it (opaque bytes), or both."""

    text: str
    capsule: bytes | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of one speaker.

    ``reasoning`` and ``calls`` belong to assistants, ``call_id`` and ``is_error`` to results. ``thoughts`` are there
    until their capsules are opened; ``reasoning`` is their text.
    """

    role: Role
    content: str
    name: str | None = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    is_error: bool = False
    thoughts: tuple[Thought, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """JSON, of a schema (its text as received) or any object."""

    schema_json: str | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything the model is to see; at least one message."""

    messages: tuple[Message, ...]
    template_options: Mapping[str, object]
    """Further variables of the chat template, plain JSON values."""
    tools: tuple[ToolSpec, ...] = ()
    tool_mode: ToolMode = ToolMode.AUTO
    allowed_names: frozenset[str] | None = None
    """Of the tools that may be called; None: all. The model is shown the others, too."""
    parallel_calls: bool = True
    enable_thinking: bool | None = field(default=None)
    """None leaves it to the template."""
    output_format: OutputFormat | None = None
    """None: free text."""

    @property
    def allowed_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called, in order, as far as ``tool_mode`` lets any be."""
        names = self.allowed_names
        return self.tools if names is None else tuple(tool for tool in self.tools if tool.name in names)

    @property
    def limits_calls(self) -> bool:
        """Whether the model may not decide by itself which calls it makes, if any are allowed."""
        is_limited = self.tool_mode is ToolMode.REQUIRED or self.allowed_names is not None
        return is_limited and self.tool_mode is not ToolMode.NONE
