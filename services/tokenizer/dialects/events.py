"""What a dialect reads out of a model's text, and what it is given to write.

Values only. ``arguments`` are text as the model wrote or the client sent it: JSON text for functions, free text for
custom tools. Nothing here is ever parsed and dumped again.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.tokenizer.fence.program import GrammarSyntax


@dataclass(frozen=True, slots=True)
class ToolGrammar:
    """Of a custom tool's text; untrusted."""

    syntax: GrammarSyntax
    text: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call. ``name`` is unique; ``parameters_json`` is the schema's text as received."""

    name: str
    """Of a tool with a namespace, ``flat_name`` of both."""
    description: str | None
    parameters_json: str
    is_custom: bool = False
    namespace: str | None = None
    grammar: ToolGrammar | None = None

    @property
    def bare_name(self) -> str:
        """As the client has it in its namespace."""
        return self.name if self.namespace is None else self.name.removeprefix(flat_name(self.namespace, ""))


def flat_name(namespace: str, name: str) -> str:
    """What the model calls a tool that has a namespace."""
    return f"{namespace}__{name}"


@dataclass(frozen=True, slots=True)
class CallText:
    """A call in history, in order."""

    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class ResultText:
    """The answer to a call."""

    name: str | None
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, without any markup."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call's name is known. ``index`` counts the calls of this answer from 0."""

    index: int
    name: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of a call's arguments; the deltas of a call concatenate to its whole arguments."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call is complete. A call that never is gets no such event, and its block is reported as ``Malformed``."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A tool block that could not be read; ``text`` is all of it, for the log and for the answer's warning."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """A call of ``name`` where none is allowed: nobody gets to see it."""

    name: str


ParseEvent = Reasoning | Text | CallStarted | CallDelta | CallFinished | Malformed | Withheld
