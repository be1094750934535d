"""Texts that are easily encoded wrong when they are cut, and a plain, slow way to encode them right."""

import json
from collections.abc import Callable

from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.tokenizer.rope.prompt_text import PromptText
from tests.unit.tokenizer.trained_tokenizers import MARKERS, SPECIALS

FRAGMENTS = (
    *("def read(self):\n    return x", "the quick brown fox jumps", "it's we'll THEY'RE", "1234567", "٣٤½Ⅷ"),
    *(" ", "  ", "\n", "\r\n", "\r\n\r\n", "\t\t\t", "\n\n\n", " \n \n", "        ", "\u00a0\u2003", "\u3000"),
    *("漢字かな", "日本語 ", "한국어ᄒ", "ᅡ", "😀👩\u200d👧", "\U0001d4d7", "हिन्दी", "ไทย", "\x00", "\ufeff"),
    *(
        "a\u0301\u0301",
        "\u0301\u0323",
        "\u0323" * 7,
        "\u0338",
        "e\u0323\u0301 end",
        "==== ",
        "||>>",
        "word",
        "Word7",
        "don't",
        "x-y",
        "a\x1eb",
        "f(a,b)[0]",
        "7\t=",
        "é's",
    ),
    *(*SPECIALS, *MARKERS, "<|im_", "end|>", "end|>!", "<tool_", "call>", "｜DS", "ML｜"),
)


def _slice(text: str, start: int, num_dropped: int) -> str:
    return text[min(start, len(text) - 1) :][: max(1, len(text) - num_dropped)]


fragments = st.builds(_slice, st.sampled_from(FRAGMENTS), st.sampled_from([0, 0, 0, 1, 3]), st.sampled_from([0, 0, 2]))
texts = st.lists(fragments | st.text(max_size=6), min_size=1, max_size=25).map("".join)


def plain_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """The same without added tokens."""
    return Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"added_tokens": []}))


def plain_ids(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """How ``tokenizer`` encodes a text in which nothing is an added token."""
    twin = plain_tokenizer(tokenizer)
    return lambda text: twin.encode(text, add_special_tokens=False).ids


def reference_ids(tokenizer: Tokenizer, encode: Callable[[str], list[int]], prompt: PromptText) -> list[int]:
    """Character by character: exact spans, the longest added token where nothing is literal, plain text otherwise.

    ``encode`` is what ``plain_ids`` gave.
    """
    text, ids, pending = prompt.text, list[int](), ""
    id_by_spelling = {token.content: token_id for token_id, token in tokenizer.get_added_tokens_decoder().items()}
    taken = {i for start, end in prompt.literals for i in range(start, end)}
    taken |= {i for span in prompt.exact for i in range(span.start, span.end)}
    span_by_start = {span.start: span for span in prompt.exact}
    position = 0
    while position < len(text):
        real = [
            spelling
            for spelling in id_by_spelling
            if text.startswith(spelling, position) and taken.isdisjoint(range(position, position + len(spelling)))
        ]
        if position in span_by_start:
            ids += [*encode(pending), *span_by_start[position].ids.tolist()]
            pending, position = "", span_by_start[position].end
        elif real:
            longest = max(real, key=len)
            ids += [*encode(pending), id_by_spelling[longest]]
            pending, position = "", position + len(longest)
        else:
            pending, position = pending + text[position], position + 1
    return ids + encode(pending)
