"""Patterns of model names that clients may use beside the real ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelAlias:
    """Names that fit ``pattern`` (``*`` and ``?`` as in a shell) mean ``model``; None: the first one that is served."""

    pattern: str
    model: str | None


def parse_aliases(text: str) -> tuple[ModelAlias, ...]:
    """``PATTERN`` or ``PATTERN=MODEL``, comma-separated; an empty text is none. Raises ValueError."""
    aliases: list[ModelAlias] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        pattern, equals, model = (part.strip() for part in entry.partition("="))
        if not pattern or (equals and not model):
            raise ValueError(f"{entry!r} must be PATTERN or PATTERN=MODEL")
        aliases.append(ModelAlias(pattern, model or None))
    return tuple(aliases)
