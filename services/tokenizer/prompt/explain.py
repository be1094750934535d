"""Says where two prompts part, and which part of the conversation is to blame."""

from __future__ import annotations

from dataclasses import dataclass

from services.tokenizer.conversation import Conversation
from services.tokenizer.detokenize import decode
from services.tokenizer.prompt.builder import Prompt
from services.tokenizer.prompt.segments import Segment, SegmentKind, find_segments, segment_at
from services.tokenizer.rope.prompt_text import TokenIds
from services.vocabulary import Vocabulary

_AROUND_CHARS = 200
_AROUND_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Side:
    """Text around the place, at most 200 characters each way."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """``at_token`` None: one prompt is a prefix of the other."""

    at_token: int | None
    segment: Segment | None
    left: Side
    right: Side


def explain(
    source: Conversation | str,
    prompt: Prompt,
    other_ids: TokenIds,
    num_common: int,
    vocabulary: Vocabulary,
    end_text: str | None,
) -> Explanation:
    """Compare ``prompt``, whose conversation is ``source``, with other ids that share ``num_common`` tokens."""
    forks = num_common < min(len(prompt.ids), len(other_ids))
    segment = blame(source, prompt, num_common, end_text) if forks else None
    return Explanation(
        num_common if forks else None,
        segment,
        _side(prompt.ids, num_common, vocabulary),
        _side(other_ids, num_common, vocabulary),
    )


def blame(source: Conversation | str, prompt: Prompt, token: int, end_text: str | None) -> Segment | None:
    """The segment that a token of a prompt lies in; None where that cannot be told."""
    if isinstance(source, str):
        return None
    return segment_at(find_segments(source, prompt, end_text), token)


def name_of(segment: Segment) -> str:
    """For people and headers: ``tools``, ``system``, ``message 3``, ``result 5``, ``generation prompt``."""
    match segment.kind:
        case SegmentKind.TOOLS | SegmentKind.SYSTEM:
            return segment.kind.name.lower()
        case SegmentKind.MESSAGE | SegmentKind.RESULT:
            return f"{segment.kind.name.lower()} {segment.index}"
        case SegmentKind.GENERATION_PROMPT:
            return "generation prompt"
        case SegmentKind.UNSPECIFIED:
            return "prompt"


def _side(ids: TokenIds, at: int, vocabulary: Vocabulary) -> Side:
    before = decode(vocabulary, ids[max(0, at - _AROUND_TOKENS) : at].tolist())
    after = decode(vocabulary, ids[at : at + _AROUND_TOKENS].tolist())
    return Side(before[-_AROUND_CHARS:], after[:_AROUND_CHARS])
