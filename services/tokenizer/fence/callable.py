"""Which tools a dialect can call: those whose calls its parser reads back. Formats without escapes cannot write every
name, so a program must not ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from services.tokenizer.dialects.events import CallFinished, CallStarted, CallText, ParseEvent, ToolSpec
from services.tokenizer.dialects.json_text import quote, split_object
from services.tokenizer.fence.parameters import Arguments, Parameter, read_arguments


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool, and the parameters that can be written."""

    name: str
    arguments: Arguments
    is_custom: bool = False


class _Parser(Protocol):
    def push(self, text: str) -> list[ParseEvent]: ...

    def finish(self) -> list[ParseEvent]: ...


class Speaks(Protocol):
    """The part of a ``Dialect`` that calls go through."""

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """As in ``Dialect``."""
        ...

    def parser(self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool) -> _Parser:
        """As in ``Dialect``."""
        ...


def callable_tool(dialect: Speaks, tool: ToolSpec) -> CallableTool | None:
    """None where no call of ``tool`` can be right in ``dialect``. Optional parameters that cannot be written are left
    out."""
    arguments = read_arguments(tool)
    if arguments is None:
        return None
    if tool.is_custom:
        call = CallText(tool.name, "x", is_custom=True)
        return CallableTool(tool.name, arguments, True) if _reads_back(dialect, tool, call) == "x" else None
    named: tuple[Parameter, ...] = () if arguments.is_open else arguments.parameters
    if not _reads_keys(dialect, tool, named):
        written = [one for one in named if _reads_keys(dialect, tool, [one])]
        is_callable = _reads_keys(dialect, tool, written)
        if not is_callable or any(one.is_required and one not in written for one in named):
            return None
        arguments = replace(arguments, parameters=tuple(written))
    return CallableTool(tool.name, arguments)


def _reads_keys(dialect: Speaks, tool: ToolSpec, parameters: Iterable[Parameter]) -> bool:
    keys = [parameter.key for parameter in parameters]
    call = CallText(tool.name, "{" + ", ".join(f"{quote(key)}: 0" for key in keys) + "}")
    read = _reads_back(dialect, tool, call)
    return read is not None and [member.key for member in split_object(read) or []] == keys


def _reads_back(dialect: Speaks, tool: ToolSpec, call: CallText) -> str | None:
    """The arguments that the parser finds; None where it does not find the one call."""
    parser = dialect.parser([tool], starts_in_reasoning=False)
    events = [*parser.push(dialect.write_calls("", [call])), *parser.finish()]
    names = [event.name for event in events if isinstance(event, CallStarted)]
    finished = [event.arguments for event in events if isinstance(event, CallFinished)]
    return finished[0] if names == [tool.name] and len(finished) == 1 else None
