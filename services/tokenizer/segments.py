"""Says which tokens of a prompt come from which message.

Where a message ends in the text is found by rendering the messages up to it; which token that is, by adding up the
tokens' bytes. Both are checked, and a prompt for which they do not hold has no segments rather than wrong ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from services.tokenizer.conversation import Conversation, Role
from services.tokenizer.encode import TokenIds
from services.tokenizer.errors import TemplateError
from services.tokenizer.render import ChatTemplate
from services.vocabulary import Vocabulary

MAX_MESSAGES = 64
"""Rendering every beginning of a conversation costs the square of its messages."""


class SegmentKind(Enum):
    """Where tokens come from."""

    UNSPECIFIED = auto()
    SYSTEM = auto()
    MESSAGE = auto()
    GENERATION_PROMPT = auto()


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of the prompt; it ends where the next one starts. What a template adds to a message belongs to it."""

    kind: SegmentKind
    index: int
    first_token: int


def find_segments(
    template: ChatTemplate, conversation: Conversation, text: str, ids: TokenIds, vocabulary: Vocabulary
) -> tuple[Segment, ...]:
    """Segments that cover all of ``ids``, the encoding of ``text``; empty where they cannot be told exactly."""
    ends = _message_ends(template, conversation, text)
    if ends is None:
        return ()
    spelt = [vocabulary.spell(token_id) for token_id in ids.tolist()]
    if b"".join(spelt) != text.encode():
        return ()
    starts = np.concatenate(([0], np.cumsum([len(data) for data in spelt], dtype=np.int64)))
    segments: list[Segment] = []
    for index, start_byte in enumerate([0, *_byte_offsets(text, ends)]):
        first_token = int(np.searchsorted(starts, start_byte))
        if starts[first_token] != start_byte:
            return ()
        if index == len(conversation.messages):
            segments.append(Segment(SegmentKind.GENERATION_PROMPT, 0, first_token))
        elif conversation.messages[index].role in (Role.SYSTEM, Role.DEVELOPER):
            segments.append(Segment(SegmentKind.SYSTEM, index, first_token))
        else:
            segments.append(Segment(SegmentKind.MESSAGE, index, first_token))
    return tuple(segments)


def count_tokens(segments: Sequence[Segment], num_tokens: int) -> list[tuple[Segment, int]]:
    """Tokens of each segment; all of them are one unspecified segment where there are no segments."""
    if not segments:
        return [(Segment(SegmentKind.UNSPECIFIED, 0, 0), num_tokens)]
    ends = [*(segment.first_token for segment in segments[1:]), num_tokens]
    return [(segment, end - segment.first_token) for segment, end in zip(segments, ends, strict=True)]


def _message_ends(template: ChatTemplate, conversation: Conversation, text: str) -> list[int] | None:
    """Where each message ends in ``text``, in characters."""
    if len(conversation.messages) > MAX_MESSAGES:
        return None
    ends: list[int] = []
    for num_messages in range(1, len(conversation.messages) + 1):
        beginning = conversation.messages[:num_messages]
        try:
            rendered = template.render(beginning, conversation.template_options, add_generation_prompt=False)
        except TemplateError:
            return None
        if not text.startswith(rendered) or (ends and len(rendered) < ends[-1]):
            return None
        ends.append(len(rendered))
    return ends


def _byte_offsets(text: str, ends: Sequence[int]) -> list[int]:
    offsets: list[int] = []
    start = offset = 0
    for end in ends:
        offset += len(text[start:end].encode())
        offsets.append(offset)
        start = end
    return offsets
