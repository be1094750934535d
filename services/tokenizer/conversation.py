"""The conversation as the template sees it: messages of text, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of one speaker."""

    role: Role
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything the model is to see; at least one message."""

    messages: tuple[Message, ...]
    template_options: Mapping[str, object]
    """Further variables of the chat template, plain JSON values."""
