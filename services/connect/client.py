"""What the command knows of a coding agent: where its configuration lies, and what belongs in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.connect.served import Target

KEY_VARIABLE = "FENCEPOST_API_KEY"
NO_KEY = "none"
"""Clients insist on a key; where none are configured, any text will do."""


def no_variables(_: Target) -> Mapping[str, str]:
    """Of a client that does without."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One agent.

    ``merge`` takes the present text of its configuration file (empty: there is none) and returns the new one, which
    keeps everything else; it raises ValueError for a text that it cannot read or that has something else in a place
    it needs. ``variables`` are those that the agent's shell must have beside the file; ``variables_alone`` are those
    that do without the file, none where the agent has no such way.
    """

    name: str
    title: str
    folder_variable: str
    """By which its user can move ``folder``."""
    folder: str
    """Below the home directory."""
    file: str
    """In ``folder``."""
    first_request_tokens: int
    """Of its first request in an empty folder, in tokens of the default model: the context must hold more.
    Measured with the versions in tests/clients/package.json, and compared with them by the tests there."""
    merge: Callable[[str, Target], str]
    variables: Callable[[Target], Mapping[str, str]] = no_variables
    variables_alone: Callable[[Target], Mapping[str, str]] = no_variables

    def path(self, home: Path, environ: Mapping[str, str]) -> Path:
        """Its configuration file."""
        return Path(environ.get(self.folder_variable) or home / self.folder) / self.file
