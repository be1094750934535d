"""Where the tokens of a prompt are settled by something else than its text: exact spans and added tokens.

prompt → stretches (exact ids · an added token · plain text) → chunks of plain text → ids
"""

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from services.tokenizer.rope.added_tokens import AddedTokens, Match
from services.tokenizer.rope.prompt_text import PromptText, TokenIds


class Stretch(NamedTuple):
    """Characters ``[start, end)``, never empty."""

    start: int
    end: int
    ids: TokenIds | None
    """None where the text is plain."""
    is_exact: bool


def split(prompt: PromptText, added: AddedTokens, start: int) -> list[Stretch]:
    """The prompt from character ``start`` on, which no exact span and no added token may cover."""
    stretches: list[Stretch] = []
    position = start
    first = bisect_right(prompt.exact, start, key=lambda span: span.end)
    for span in prompt.exact[first:]:
        _split_segment(prompt, added, position, span.start, stretches)
        stretches.append(Stretch(span.start, span.end, span.ids, is_exact=True))
        position = span.end
    _split_segment(prompt, added, position, len(prompt.text), stretches)
    return stretches


def real_tokens(prompt: PromptText, added: AddedTokens, start: int, end: int) -> list[Match]:
    """The added tokens in ``[start, end)`` that lie wholly outside literal ranges."""
    matches: list[Match] = []
    position = start
    first = bisect_right(prompt.literals, start, key=lambda literal: literal[1])
    for literal_start, literal_end in prompt.literals[first:]:
        if literal_start >= end:
            break
        if position < literal_start:
            matches += added.find(prompt.text, position, literal_start)
        position = literal_end
    if position < end:
        matches += added.find(prompt.text, position, end)
    return matches


def _split_segment(prompt: PromptText, added: AddedTokens, start: int, end: int, stretches: list[Stretch]) -> None:
    for match_start, match_end, token_id in real_tokens(prompt, added, start, end):
        if start < match_start:
            stretches.append(Stretch(start, match_start, None, is_exact=False))
        stretches.append(Stretch(match_start, match_end, np.array([token_id], np.int32), is_exact=False))
        start = match_end
    if start < end:
        stretches.append(Stretch(start, end, None, is_exact=False))
