"""For whom a request is and which replica suits it."""

from dataclasses import dataclass
from enum import Enum, auto

from services.identity import digest_fields
from services.tokenizer.conversation import Conversation, Role

_KEY_CHARS = 1024


class Priority(Enum):
    """Order of waiting requests."""

    INTERACTIVE = auto()
    BACKGROUND = auto()


@dataclass(frozen=True, slots=True)
class Routing:
    """Owner, scope and kinship of a request."""

    tenant: str
    cache_scope: str
    conversation_key: str
    request_id: str = ""
    priority: Priority = Priority.INTERACTIVE
    response_id: str = ""
    persist: bool | None = None
    """Whether state may be written to disk; None leaves it to the engine's setting."""


def derive_conversation_key(tenant: str, source: Conversation | str) -> str:
    """A key that all turns of a conversation share, from what they all begin with.

    That is everything up to the first user message, or the first 1,024 characters of a plain text. Only affinity
    depends on it, so two conversations with one key do no harm.
    """
    if isinstance(source, str):
        opening = [("text", source[:_KEY_CHARS].encode())]
    else:
        opening: list[tuple[str, bytes]] = []
        for message in source.messages:
            opening.append((message.role, message.content.encode()))
            if message.role is Role.USER:
                break
    return digest_fields(("tenant", tenant.encode()), *opening, size=16).hex()
