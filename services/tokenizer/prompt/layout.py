"""Conversation → prompt text, and what stands where in it.

The text is the model's own template applied to the conversation, whatever marks say: it is rendered once with plain
strings and once with marked ones, and marks count only where both give the same text. From them follow

- turns: where an assistant wrote, so that the ids it sampled can stand there again;
- places: which message a character belongs to.

What clients sent never becomes a control token by its spelling (``literals``): the conversation is rendered once more
with each such spelling blanked out, and where the two texts differ is where the spellings are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.tokenizer.conversation import Conversation, Role
from services.tokenizer.dialects.call_text import function_json
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.errors import TemplateError
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.manners import find_manners
from services.tokenizer.prompt.marked import Marked, MarkedRange, holds_marks, unmark
from services.tokenizer.prompt.spellings import Ranges, blanked, find_blanks
from services.tokenizer.prompt.template import ChatTemplate
from services.tokenizer.prompt.template_messages import TOOLS, Mark, MessageWriter
from services.tokenizer.prompt.tojson import JsonText

_MAX_DIGITS = 1000
_PROBE = ToolSpec("probe", None, '{"type": "object", "properties": {}}')


@dataclass(frozen=True, slots=True)
class Turn:
    """Characters [start, end) that the assistant wrote: from behind the generation prompt to before its end token."""

    message: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Place:
    """Characters [start, end) of message ``message``'s content, or of a tool definition (None)."""

    message: int | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A rendered prompt. ``is_marked`` is false where the template hides what stands where."""

    text: str
    generation_prompt: str
    places: tuple[Place, ...]
    turns: tuple[Turn, ...]
    is_marked: bool


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """A conversation, or the end of one, in the shape that templates take. ``is_marked``: of ``Marked`` strings."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    options: Mapping[str, object]
    is_marked: bool


class PromptWriter:
    """One model's way from a conversation to text. Safe to use from several threads."""

    def __init__(self, template: ChatTemplate | DeepseekTemplate, dialect: Dialect, end_text: str | None) -> None:
        """``end_text`` spells the token that ends an assistant's turn; None: turns are not found."""
        self.template = template
        self.manners = find_manners(template, _native_tool(_PROBE, None))
        """What the template takes as it is."""
        self._messages = MessageWriter(dialect, self.manners)
        self._end_text = end_text

    def write(self, conversation: Conversation) -> Layout:
        """Raises TemplateError and InvalidRequestError."""
        return self.lay_out(conversation, *self.inputs(conversation))

    def inputs(self, conversation: Conversation) -> tuple[TemplateInput, TemplateInput]:
        """What the template gets: plain, and marked."""
        return self._input(conversation, _as_it_is), self._input(conversation, Marked.of)

    def further(
        self, conversation: Conversation, start: int
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None:
        """What follows in both ``inputs`` behind the first ``start`` messages of a conversation, which are not none.

        None where the template gets messages on both sides of ``start`` as one.
        """
        if start == len(conversation.messages):
            return (), ()
        plain = self._messages.further(conversation, _as_it_is, start)
        marked = self._messages.further(conversation, Marked.of, start)
        return None if plain is None or marked is None else (plain, marked)

    def lay_out(self, conversation: Conversation, plain: TemplateInput, marked: TemplateInput) -> Layout:
        """Render a conversation from its ``inputs``."""
        text = self.render(plain, add_generation_prompt=True)
        history = self.render(plain, add_generation_prompt=False)
        prompt = text.removeprefix(history) if text.startswith(history) else ""
        places = None if holds_marks([text]) else self._places(marked, text)
        if places is None:
            return Layout(text, prompt, (), (), is_marked=False)
        return Layout(text, prompt, places, self.turns(conversation, text, prompt, places), is_marked=True)

    def render(self, given: TemplateInput, *, add_generation_prompt: bool) -> str:
        """The template's text."""
        return self.template.render(
            given.messages,
            given.options,
            tools=given.tools,
            add_generation_prompt=add_generation_prompt,
            is_marked=given.is_marked,
        )

    def literals(self, conversation: Conversation, text: str, spellings: re.Pattern[str]) -> Ranges | None:
        """Ranges of ``text``, the conversation's prompt, in which a client spelt a control token.

        None where the template hides them: where it decides by such a spelling, or writes something twice as long.
        Only the thinking that an answer has in its text may be decided by; its tags are the template's then.
        """
        for spares_thinking in (False, True):
            twin = blanked(conversation, spellings, spares_thinking=spares_thinking)
            if twin == conversation:
                return ()
            try:
                blank_text = self.render(self._input(twin, _as_it_is), add_generation_prompt=True)
            except TemplateError:
                continue
            ranges = find_blanks(text, blank_text, spellings)
            if ranges is not None:
                return ranges
        return None

    def _places(self, marked: TemplateInput, plain: str) -> tuple[Place, ...] | None:
        try:
            found = unmark(self.render(marked, add_generation_prompt=True))
        except TemplateError:
            # It asks for more than a marked string can do.
            return None
        if found is None or found[0] != plain or not found[1]:
            return None
        return tuple(place_of(marked_range) for marked_range in found[1])

    def _input(self, conversation: Conversation, mark: Mark) -> TemplateInput:
        is_marked = mark is not _as_it_is
        tools = conversation.tools
        native = bool(tools) and self.template.knows_tools
        return TemplateInput(
            self._messages.write(conversation, mark, with_instructions=bool(tools) and not native),
            [_native_tool(tool, TOOLS if is_marked else None) for tool in tools] if native else None,
            options_of(conversation),
            is_marked,
        )

    def turns(self, conversation: Conversation, text: str, prompt: str, places: Sequence[Place]) -> tuple[Turn, ...]:
        """Assistants' turns, as far as the template writes what precedes them as it writes the generation prompt."""
        if not prompt or self._end_text is None:
            return ()
        places_by_message: dict[int | None, list[Place]] = {}
        for place in places:
            places_by_message.setdefault(place.message, []).append(place)
        turns: list[Turn] = []
        previous_end = 0
        for index, message in enumerate(conversation.messages):
            own = places_by_message.get(index)
            if own is None:
                continue
            if message.role is Role.ASSISTANT:
                start = text.rfind(prompt, previous_end, own[0].start)
                end = text.find(self._end_text, own[-1].end)
                if start >= 0 and end >= 0:
                    turns.append(Turn(index, start + len(prompt), end))
            previous_end = own[-1].end
        return tuple(turns)


def options_of(conversation: Conversation) -> dict[str, object]:
    """The template's further variables."""
    options = dict(conversation.template_options)
    if conversation.enable_thinking is not None:
        options.setdefault("enable_thinking", conversation.enable_thinking)
    return options


def place_of(marked: MarkedRange, moved: int = 0) -> Place:
    """What a mark stands for, in a text that begins ``moved`` characters earlier."""
    message = None if marked.name == TOOLS else int(marked.name)
    return Place(message, marked.start + moved, marked.end + moved)


def _as_it_is(text: str, name: str) -> str:
    return text


def _native_tool(tool: ToolSpec, mark: str | None) -> JsonText:
    """A tool in the shape that templates were trained on, with the schema's text as received."""
    function = function_json(tool)
    text = f'{{"type": "function", "function": {function}}}'
    # Python refuses to read whole numbers of more than a few thousand digits.
    value = json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else float(digits))
    value["function"] = JsonText(value["function"], function, mark)
    return JsonText(value, text, mark)
