"""Says which tokens of a prompt come from which part of the conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from services.tokenizer.conversation import Conversation, Role
from services.tokenizer.prompt.builder import Prompt
from services.tokenizer.prompt.layout import Layout


class SegmentKind(Enum):
    """Where tokens come from."""

    UNSPECIFIED = auto()
    TOOLS = auto()
    SYSTEM = auto()
    MESSAGE = auto()
    RESULT = auto()
    GENERATION_PROMPT = auto()


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of the prompt; it ends where the next one starts. What a template adds to a message belongs to it."""

    kind: SegmentKind
    index: int
    first_token: int


_KINDS = {
    Role.SYSTEM: SegmentKind.SYSTEM,
    Role.DEVELOPER: SegmentKind.SYSTEM,
    Role.USER: SegmentKind.MESSAGE,
    Role.ASSISTANT: SegmentKind.MESSAGE,
    Role.TOOL: SegmentKind.RESULT,
}


def find_segments(conversation: Conversation, prompt: Prompt, end_text: str | None) -> tuple[Segment, ...]:
    """Segments that cover all tokens; empty where the template hides what stands where.

    ``end_text`` spells the token with which the template ends a message.
    """
    layout = prompt.layout
    if layout is None or not layout.is_marked:
        return ()
    starts = _starts(conversation, layout, end_text)
    segments: list[Segment] = []
    for kind, index, char in starts:
        token = prompt.encoded.token_at(_moved(prompt, char))
        if segments and segments[-1].first_token == token:
            segments.pop()
        # What merged into the token before it has none of its own.
        if token < len(prompt.ids):
            segments.append(Segment(kind, index, token))
    return tuple(segments)


def segment_at(segments: Sequence[Segment], token: int) -> Segment | None:
    """The segment that a token lies in."""
    return next((segment for segment in reversed(segments) if segment.first_token <= token), None)


def count_tokens(segments: Sequence[Segment], num_tokens: int) -> list[tuple[Segment, int]]:
    """Tokens of each segment; all of them are one unspecified segment where there are no segments."""
    if not segments:
        return [(Segment(SegmentKind.UNSPECIFIED, 0, 0), num_tokens)]
    ends = [*(segment.first_token for segment in segments[1:]), num_tokens]
    return [(segment, end - segment.first_token) for segment, end in zip(segments, ends, strict=True)]


def _starts(conversation: Conversation, layout: Layout, end_text: str | None) -> list[tuple[SegmentKind, int, int]]:
    """Kind, index and first character of each segment, in order, the first at 0."""
    starts: list[tuple[SegmentKind, int, int]] = []
    previous_end = 0
    for place in layout.places:
        if place.message is None:
            if not any(kind is SegmentKind.TOOLS for kind, _, _ in starts):
                starts.append((SegmentKind.TOOLS, 0, place.start if starts else 0))
        elif not any(index == place.message and kind is not SegmentKind.TOOLS for kind, index, _ in starts):
            kind = _KINDS[conversation.messages[place.message].role]
            start = _behind_end(layout.text, previous_end, place.start, end_text) if starts else 0
            starts.append((kind, place.message, start))
        previous_end = place.end
    if layout.generation_prompt:
        starts.append((SegmentKind.GENERATION_PROMPT, 0, len(layout.text) - len(layout.generation_prompt)))
    return starts


def _behind_end(text: str, start: int, end: int, end_text: str | None) -> int:
    """Where a message's own text ends and the next one's begins, between the contents of both."""
    found = text.find(end_text, start, end) if end_text else -1
    if found < 0:
        return end
    behind = found + len(end_text or "")
    while behind < end and text[behind] == "\n":
        behind += 1
    return behind


def _moved(prompt: Prompt, char: int) -> int:
    """Where a character of the rendering stands in the prompt."""
    shift = 0
    for position, by in prompt.moved:
        if position <= char:
            shift = by
    return char + shift
