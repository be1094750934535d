"""Prompts that grow and change where an encoder is most easily wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from bench.corpus.markup import Message, render
from bench.corpus.texts import sources

_FRAGMENTS = (
    *("def parse(x):\n    return x", "it's we'll THEY'RE", "naïve café", "12345678901234567", "٣٤٥٦٧٨٩", "€£¥§"),
    *("  \n\n\t", "\r\n\r\n", "  " * 20, "\n" * 30, "\t" * 17, "xxx" + " " * 70 + "\n", "\u00a0\u2003\u3000"),
    *("漢字かな交じり文と中文", "한국어ᄒ", "ᅡ", "\u1100\u1161\u11a8", "ไทยภาษา", "العربية", "हिन्दी", "ﬁ ﬀ Å ℵ"),
    *(
        "😀👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈",
        "e\u0301\u0301",
        "\u0301\u0323",
        "a\u0335b\u0335c\u0335",
        "\u0338",
        "Z\u0351\u036b\u0343\u0363",
    ),
    *("====----====", "a" * 27, "AAAAaaaaBBBbbb", "/*///***/", "||||>>>><<<<", '\\n\\t\\"', "\U0001d4d7\U0001d4d4"),
    *('{"a": [1, 2.5e10, null], "b": "x\\ny"}', "\x00\x01\x7f", "\u200b\ufeff"),
    *("<|im_", "end|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<｜User｜>", "｜DSML｜", "<|start|>"),
    *("<|eot_id|>", "<|end|>", "<|message|>", "<|endoftext|>"),
)
_MAX_CHARS = 12_000


def grown(name: str, num_prompts: int, spellings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Conversation key and prompt; each prompt of a conversation begins with the one before it."""
    turns = 6
    for number in range(-(-num_prompts // turns)):
        source = random.Random(7919 * number + 5)
        text = _start(name, source)
        for _ in range(turns):
            yield f"grown-{number}", text
            text += _delta(source, spellings)


def changed(name: str, num_prompts: int, spellings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Conversation key and prompt: edits in the middle, forks, and rewinds, of which some grow again."""
    source = random.Random(11)
    text = _start(name, source)
    for number in range(num_prompts):
        if number % 25 == 0 or len(text) > _MAX_CHARS:
            text = _start(name, source)
        place = source.randrange(len(text))
        match source.choice(("edit", "edit", "fork", "rewind", "insert")):
            case "edit":
                text = text[:place] + _delta(source, spellings) + text[place + source.randrange(1, 200) :]
            case "fork":
                text = text[:place] + _delta(source, spellings)
            case "rewind":
                text = text[: max(1, place)]
            case _:
                text = text[:place] + _delta(source, spellings) + text[place:]
        yield f"changed-{number // 100}", text


def _start(name: str, source: random.Random) -> str:
    return render(name, [Message("system", _excerpt(source, source.randrange(600, 2500)))])


def _delta(source: random.Random, spellings: Sequence[str]) -> str:
    parts: list[str] = []
    for _ in range(source.randint(1, 6)):
        kind = source.random()
        if kind < 0.45:
            parts.append(_excerpt(source, source.randint(1, 300)))
        elif kind < 0.9:
            parts.append(source.choice(_FRAGMENTS))
        else:
            parts.append(source.choice(spellings))
    text = "".join(parts)
    # Begin and end anywhere: inside words, inside what looks like one character, inside markers.
    if source.random() < 0.4:
        text = text[source.randrange(len(text)) :]
    if source.random() < 0.4:
        text = text[: source.randrange(1, len(text) + 1)]
    return text


def _excerpt(source: random.Random, num_chars: int) -> str:
    _, text = source.choice(sources())
    start = source.randrange(max(1, len(text) - num_chars))
    return text[start : start + num_chars]
