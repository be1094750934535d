"""What belongs together: the turns of one conversation should reach one tokenizer replica.

Affinity makes turns faster, never right: any replica can answer any turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from fencepost.tokenizer.v1 import conversation_pb2

_FIRST_CHARACTERS = 512
_HEADERS = ("session-id", "thread-id", "x-session-id", "x-claude-code-session-id")


def session_of(headers: Mapping[str, str]) -> str:
    """An agent's own name for its session; empty when it gives none."""
    return next((value for header in _HEADERS if (value := headers.get(header))), "")


def first_messages_key(messages: Iterable[conversation_pb2.Message]) -> str:
    """A digest of what every turn of a conversation begins with: all up to the first user message."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        encoded = message.SerializeToString(deterministic=True)
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
        if message.role == conversation_pb2.ROLE_USER:
            break
    return digest.hexdigest()


def first_characters_key(text: str) -> str:
    """A digest of what a text begins with: texts that grow at the end keep it once they are long enough to matter."""
    return hashlib.blake2b(text[:_FIRST_CHARACTERS].encode(), digest_size=16).hexdigest()
