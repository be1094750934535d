"""Incremental rendering: of a conversation that goes on, only what is new is rendered.

Where a template is append-only (``append_only``), new messages are rendered behind the conversation's first one alone,
and what that adds is put behind the remembered text. Relations that follow from the proof are checked each time;
wherever one does not hold, or the template refuses, everything is rendered.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.tokenizer.conversation import Conversation, Message
from services.tokenizer.errors import TemplateError
from services.tokenizer.metrics import RENDERINGS
from services.tokenizer.prompt.append_only import why_not
from services.tokenizer.prompt.layout import Layout, PromptWriter, TemplateInput, options_of, place_of
from services.tokenizer.prompt.marked import holds_marks, unmark
from services.tokenizer.prompt.spellings import Ranges
from services.tokenizer.rope.anchors import AnchorCache

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimits:
    """How much may be remembered, and when it serves."""

    enabled: bool = True
    entries: int = 512
    """Conversations remembered."""
    max_chars: int = 2**26
    """Characters of what is remembered of them, all together."""
    min_chars: int = 4096
    """Shorter prompts are never remembered."""
    verify_rate: float = 0.0
    """Share of incremental renderings that are also rendered whole and compared."""


@dataclass(frozen=True, slots=True)
class _Head:
    """The first message alone, and its text without a generation prompt."""

    given: TemplateInput
    text: str


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Where the text of the first ``num_messages`` messages ends."""

    num_messages: int
    num_chars: int
    num_places: int


@dataclass(frozen=True, slots=True)
class _Written:
    """A conversation's latest prompt. ``boundaries`` of its latest and earlier prompts, ascending."""

    conversation: Conversation
    layout: Layout
    plain: _Head
    marked: _Head
    boundaries: tuple[_Boundary, ...]

    @property
    def num_chars(self) -> int:
        """About: the messages are as long as the text that came of them."""
        return 2 * len(self.layout.text) + 2 * len(self.plain.text) + 2 * len(self.marked.text)


class AppendingWriter:
    """A PromptWriter that remembers. Any thread may call."""

    def __init__(self, writer: PromptWriter, limits: AppendLimits) -> None:
        self._writer = writer
        self._limits = limits
        self._memory: AnchorCache[_Written] = AnchorCache(limits.entries, limits.max_chars)
        source = writer.template.source
        self.why_not = "it is off"
        if limits.enabled:
            self.why_not = "the model has an encoder, not a template" if source is None else why_not(source)
        """Why prompts are rendered whole."""
        _log.info("incremental rendering: %s", "on" if self.why_not is None else f"off, because {self.why_not}")

    def write(self, conversation: Conversation, anchor: str | None) -> Layout:
        """The layout that PromptWriter gives, remembered as the latest one of the conversation ``anchor``.

        Raises TemplateError and InvalidRequestError.
        """
        known = None if anchor is None else self._memory.get(anchor)
        if anchor is None or self.why_not is not None:
            return self._writer.write(conversation)
        written = None if known is None else self._append(known, conversation)
        if written is None:
            RENDERINGS.labels("whole").inc()
            layout, written = self._write_whole(conversation)
        else:
            RENDERINGS.labels("appended").inc()
            layout = written.layout
            if self._limits.verify_rate and random.random() < self._limits.verify_rate:
                whole = self._writer.write(conversation)
                if whole != layout:
                    self._disable(len(conversation.messages))
                    return whole
        if written is not None:
            self._memory.put(anchor, written)
        return layout

    def literals(self, conversation: Conversation, text: str, spellings: re.Pattern[str]) -> Ranges | None:
        """As PromptWriter has it."""
        return self._writer.literals(conversation, text, spellings)

    def _write_whole(self, conversation: Conversation) -> tuple[Layout, _Written | None]:
        """The layout, and what can be remembered of it."""
        plain, marked = self._writer.inputs(conversation)
        layout = self._writer.lay_out(conversation, plain, marked)
        if not layout.is_marked or len(layout.text) < self._limits.min_chars:
            return layout, None
        try:
            plain_head = self._head(plain, layout)
            marked_head = self._head(marked, layout)
        except TemplateError:
            return layout, None
        if plain_head is None or marked_head is None or not layout.text.startswith(plain_head.text):
            return layout, None
        num_chars = len(layout.text) - len(layout.generation_prompt)
        boundary = _Boundary(len(conversation.messages), num_chars, len(layout.places))
        return layout, _Written(conversation, layout, plain_head, marked_head, (boundary,))

    def _head(self, given: TemplateInput, layout: Layout) -> _Head | None:
        """None unless the generation prompt is the same behind the first message."""
        first = replace(given, messages=given.messages[:1])
        text = self._writer.render(first, add_generation_prompt=False)
        if self._writer.render(first, add_generation_prompt=True) != text + layout.generation_prompt:
            return None
        return _Head(first, text)

    def _append(self, known: _Written, conversation: Conversation) -> _Written | None:
        """The conversation's prompt from an earlier one of it; None where that is not to be had."""
        # Not as Python compares: 1 and True are written differently.
        options = repr(options_of(conversation))
        if conversation.tools != known.conversation.tools or options != repr(known.plain.given.options):
            return None
        num_known = _num_equal(known.conversation.messages, conversation.messages)
        boundaries = tuple(boundary for boundary in known.boundaries if boundary.num_messages <= num_known)
        further = self._writer.further(conversation, boundaries[-1].num_messages) if boundaries else None
        if further is None:
            return None
        start = boundaries[-1].num_chars
        try:
            text = self._addition(known.plain, further[0])
            written = None if text is None else self._addition(known.marked, further[1])
        except TemplateError:
            return None
        if text is None or written is None or holds_marks([text]):
            return None
        found = unmark(written)
        if found is None or found[0] != text:
            return None
        prompt = known.layout.generation_prompt
        history = known.layout.text[:start] + text
        new_places = (place_of(marked, start) for marked in found[1])
        places = (*known.layout.places[: boundaries[-1].num_places], *new_places)
        turns = self._writer.turns(conversation, history + prompt, prompt, places)
        layout = Layout(history + prompt, prompt, places, turns, is_marked=True)
        if len(conversation.messages) > boundaries[-1].num_messages:
            boundaries = (*boundaries, _Boundary(len(conversation.messages), len(history), len(places)))
        return replace(known, conversation=conversation, layout=layout, boundaries=boundaries)

    def _addition(self, head: _Head, messages: Sequence[Mapping[str, Any]]) -> str | None:
        """The text of messages; None unless it comes behind the head's."""
        if not messages:
            return ""
        given = replace(head.given, messages=[*head.given.messages, *messages])
        text = self._writer.render(given, add_generation_prompt=False)
        return text[len(head.text) :] if text.startswith(head.text) else None

    def _disable(self, num_messages: int) -> None:
        self.why_not = "it was wrong"
        _log.warning(
            "incremental rendering is switched off, because it gave another prompt for a conversation of %d messages",
            num_messages,
        )


def _num_equal(left: Sequence[Message], right: Sequence[Message]) -> int:
    """The number of leading messages that are equal."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
