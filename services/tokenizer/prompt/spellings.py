"""Control tokens that clients spelt in texts of their own: whether there are any, and where they end up in a prompt.

They are found by rendering a twin of the conversation in which each is blanked out: where the two prompts differ is
where the spellings are. JSON is looked at as it is decoded, since some formats write strings without their escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.json_text import decode_string, is_json

Ranges = tuple[tuple[int, int], ...]
"""Characters [start, end), sorted and disjoint."""

# A noncharacter: one that no text contains that is meant to be exchanged.
_BLANK = "\ufdd3"
_BLANK_BY_LENGTH = {1: _BLANK, 2: "\\b", 6: "\\ufdd3"}
"""JSON spellings of blanks that are as long as what they stand for."""
_BLANKS = re.compile(r"\ufdd3|\x08|\\ufdd3|\\b")
_THINKING = ("<think>", "</think>")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CHAR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Change:
    """What to do with each text of a client."""

    text: Callable[[str], str]
    json: Callable[[str], str]
    answer: Callable[[str], str]


def first_spelling(conversation: Conversation, spellings: re.Pattern[str]) -> str | None:
    """A control token that a client spelt in text of its own; None when there is none."""
    found: list[str] = []

    def note(match: re.Match[str]) -> str:
        found.append(match[0])
        return match[0]

    def note_all(text: str) -> str:
        return spellings.sub(note, text)

    def note_json(text: str) -> str:
        for string in _strings(text):
            note_all("".join(map(_decoded, string)))
        return note_all(text)

    _changed(conversation, _Change(note_all, note_json, note_all))
    return found[0] if found else None


def blanked(conversation: Conversation, spellings: re.Pattern[str], *, spares_thinking: bool = False) -> Conversation:
    """The conversation with every spelling replaced by as many characters that are no text.

    ``spares_thinking`` leaves the tags of thinking in answers, which templates look for.
    """

    def blank(text: str) -> str:
        return spellings.sub(lambda match: _BLANK * len(match[0]), text)

    def blank_answer(text: str) -> str:
        return spellings.sub(lambda match: match[0] if match[0] in _THINKING else _BLANK * len(match[0]), text)

    def blank_json(text: str) -> str:
        if not _strings(text):
            return blank(text)
        return blank(_STRING.sub(lambda match: _blank_string(match[0], spellings), text))

    return _changed(conversation, _Change(blank, blank_json, blank_answer if spares_thinking else blank))


def find_blanks(text: str, twin: str, spellings: re.Pattern[str]) -> Ranges | None:
    """Ranges of ``text`` that spell control tokens and are blank in its ``twin``; None where more than that differs."""
    if len(twin) != len(text):
        return None
    blanks: list[tuple[int, int]] = []
    position = 0
    for match in _BLANKS.finditer(twin):
        start, end = match.span()
        if twin[position:start] != text[position:start] or _BLANK in text[start:end]:
            return None
        position = end
        # An escape has stayed one: it spells nothing.
        if end - start > 1 or text[start] == match[0]:
            continue
        if blanks and blanks[-1][1] == start:
            start = blanks.pop()[0]
        blanks.append((start, end))
    if twin[position:] != text[position:]:
        return None
    return tuple((start, end) for start, end in blanks if spellings.search(text, start, end))


def _strings(text: str) -> list[list[str]]:
    """Of a JSON text, the strings with escapes, as the spellings of their characters."""
    if "\\" not in text or not is_json(text):
        return []
    return [_CHAR.findall(string[1:-1]) for string in _STRING.findall(text) if "\\" in string]


def _blank_string(string: str, spellings: re.Pattern[str]) -> str:
    chars: list[str] = _CHAR.findall(string[1:-1])
    for match in spellings.finditer("".join(map(_decoded, chars))):
        for index in range(*match.span()):
            # Of no blank as long as a surrogate pair: where that is written as it is, the lengths tell.
            chars[index] = _BLANK_BY_LENGTH.get(len(chars[index]), _BLANK)
    return f'"{"".join(chars)}"'


def _decoded(char: str) -> str:
    return decode_string(f'"{char}"') if char.startswith("\\") else char


def _changed(conversation: Conversation, change: _Change) -> Conversation:
    return replace(
        conversation,
        messages=tuple(_changed_message(message, change) for message in conversation.messages),
        tools=tuple(_changed_tool(tool, change) for tool in conversation.tools),
        template_options={name: _changed_value(value, change) for name, value in conversation.template_options.items()},
    )


def _changed_message(message: Message, change: _Change) -> Message:
    return replace(
        message,
        content=(change.answer if message.role is Role.ASSISTANT else change.text)(message.content),
        name=None if message.name is None else change.text(message.name),
        reasoning=change.text(message.reasoning),
        calls=tuple(_changed_call(call, change) for call in message.calls),
        call_id=None if message.call_id is None else change.text(message.call_id),
    )


def _changed_call(call: Call, change: _Change) -> Call:
    arguments = (change.text if call.is_custom else change.json)(call.arguments)
    return replace(call, name=change.text(call.name), arguments=arguments)


def _changed_tool(tool: ToolSpec, change: _Change) -> ToolSpec:
    return replace(
        tool,
        name=change.text(tool.name),
        description=None if tool.description is None else change.text(tool.description),
        parameters_json=change.json(tool.parameters_json),
    )


def _changed_value(value: object, change: _Change) -> object:
    match value:
        case str():
            return change.text(value)
        case list():
            return [_changed_value(one, change) for one in cast("list[object]", value)]
        case dict():
            items = cast("dict[str, object]", value).items()
            return {change.text(name): _changed_value(one, change) for name, one in items}
        case _:
            return value
