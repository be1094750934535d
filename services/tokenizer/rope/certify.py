"""Decides at load whether a tokenizer may be cut: what its parts are is compared with what was proven, then probed.

Proof. A pre-tokenizer on the list splits by alternatives none of which matches an ASCII letter or digit with a space,
tab, newline or ASCII sign but the apostrophe directly behind it, looks behind, or looks ahead other than from white
space; at white space and at a sign one always matches. So no word reaches over a cut, words before it are the same when
the text ends there, and words behind it start there. NFC has a boundary before every ASCII character and leaves ASCII
letters and digits before one alone. BPE works word by word. Added tokens are taken out before any of this, so nothing
reaches over their ends either.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

from tokenizers import Tokenizer, models, pre_tokenizers

from services.tokenizer.rope.added_tokens import AddedTokens
from services.tokenizer.rope.cuts import cut, split_words
from services.tokenizer.rope.prompt_text import PromptText
from services.tokenizer.rope.stretches import split

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_ANY_SPACE = r"\s+"
_ANY_SIGN = (
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
)
_SAFE_ALTERNATIVES = frozenset(
    {
        _CONTRACTIONS,
        "'(?i:[sdmt]|ll|ve|re)",
        # words
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        _CJK,
        # numbers
        r"\p{N}",
        r"\p{N}{1,3}",
        r"\p{N}+",
        *_ANY_SIGN,
        # white space
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    }
)

_NUM_PROBES = 96
_FRAGMENTS = (
    *("word", "Word", "HTTPServer", "x", "7", "2024", "it's", "don't", "I'LL", "naïve", "ß", "straße", "٣٤", "½", "Ⅷ"),
    *(" ", " ", " ", "\n", "\n", "  ", "    ", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u2028", "\x00"),
    *(".", ",", "(", ")", "{", "}", "==", "->", "/*", "*/", "'", '"', "\\n", "<", ">", "|", "<|", "|>", "#", "_", "-"),
    *(
        "漢字",
        "かな",
        "한국어",
        "ᄒ",
        "ᅡ",
        "é",
        "e\u0301",
        "\u0301",
        "\u0323",
        "\u0338",
        "Å",
        "😀",
        "👩\u200d👧",
        "\U0001d4d7",
    ),
    *("ไทย", "हिन्दी", "العربية", "\u200b", "\ufeff", "ﬁ", "€", "a\u0335", "aaaaaaaa", "\t\t\t", "===="),
)


def why_not_certified(tokenizer: Tokenizer, plain: Tokenizer, added: AddedTokens) -> str | None:
    """The first reason against cutting texts for ``tokenizer``; None when there is none.

    ``plain`` is the same tokenizer without added tokens. Takes some ten milliseconds.
    """
    return (
        _against_model(tokenizer)
        or _against_normalizer(tokenizer, added)
        or _against_pre_tokenizer(tokenizer)
        or _against_added_tokens(tokenizer, added)
        or _against_probes(tokenizer, plain, added)
    )


def has_normalizer(tokenizer: Tokenizer) -> bool:
    """Whether the text is changed before it is split."""
    return bool(_normalizers(tokenizer))


def ascii_stages(pre_tokenizer: pre_tokenizers.Sequence) -> list[pre_tokenizers.PreTokenizer]:
    """The parts of a certified pre-tokenizer but those that leave ASCII text in one piece."""
    states = cast(list[dict[str, Any]], _state(pre_tokenizer)["pretokenizers"])
    return [pre_tokenizer[i] for i, state in enumerate(states) if state.get("pattern") != {"Regex": _CJK}]


def _against_model(tokenizer: Tokenizer) -> str | None:
    model = tokenizer.model
    if not isinstance(model, models.BPE):
        return f"the model is {type(model).__name__}, not BPE"
    if model.dropout:
        return "the model drops merges at random"
    return None


def _against_normalizer(tokenizer: Tokenizer, added: AddedTokens) -> str | None:
    kinds = [str(part["type"]) for part in _normalizers(tokenizer)]
    unknown = [kind for kind in kinds if kind != "NFC"]
    if unknown:
        return f"the normalizer {unknown[0]} is not on the list"
    if kinds and any(token.normalized for token in added.tokens):
        return "added tokens are searched in normalized text"
    return None


def _against_pre_tokenizer(tokenizer: Tokenizer) -> str | None:
    parts = _parts(_state(tokenizer.pre_tokenizer), "pretokenizers")
    separates = False
    for part in parts:
        match part:
            case {"type": "Digits"}:
                continue
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(use_regex)}:
                separates |= use_regex
            case {"type": "Split", "pattern": {"Regex": str(regex)}, "behavior": "Isolated", "invert": False}:
                alternatives = _alternatives(regex.replace("\r", r"\r").replace("\n", r"\n"))
                unknown = [alternative for alternative in alternatives if alternative not in _SAFE_ALTERNATIVES]
                if unknown:
                    return f"the pre-tokenizer's pattern {unknown[0]!r} is not on the list"
                separates |= _ANY_SPACE in alternatives and not set(_ANY_SIGN).isdisjoint(alternatives)
            case _:
                return f"the pre-tokenizer {part['type']} is not on the list as it is configured"
    return None if separates else "the pre-tokenizer does not separate words at white space and signs"


def _against_added_tokens(tokenizer: Tokenizer, added: AddedTokens) -> str | None:
    for token in added.tokens:
        if token.lstrip or token.rstrip or token.single_word:
            return f"the added token {token.content!r} depends on what stands beside it"
    encodings = tokenizer.encode_batch_fast(list(added.contents), add_special_tokens=False)
    for content, encoding in zip(added.contents, encodings, strict=True):
        if encoding.ids != [added.id_of(content)]:
            return f"the added token {content!r} is not encoded as itself"
    return None


def _against_probes(tokenizer: Tokenizer, plain: Tokenizer, added: AddedTokens) -> str | None:
    source = random.Random(0)
    texts = ["".join(_fragments(source, added.contents)) for _ in range(_NUM_PROBES)]
    wholes = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for text, whole in zip(texts, wholes, strict=True):
        for split_text in (_smallest_chunks, split_words):
            if _encode_in_pieces(text, plain, added, split_text) != whole.ids:
                return f"cutting changes the ids of {text[:40]!r}…"
    return None


def _fragments(source: random.Random, spellings: Sequence[str]) -> list[str]:
    fragments = [source.choice(_FRAGMENTS) for _ in range(source.randrange(8, 80))]
    for spelling in source.sample(spellings, min(3, len(spellings))):
        fragments.insert(source.randrange(len(fragments)), spelling[source.choice((0, 0, 1)) :])
    return fragments


def _encode_in_pieces(
    text: str, plain: Tokenizer, added: AddedTokens, split_text: Callable[[str], list[str]]
) -> list[int]:
    ids: list[int] = []
    for stretch in split(PromptText(text), added, 0):
        if stretch.ids is not None:
            ids += stretch.ids.tolist()
            continue
        pieces = split_text(text[stretch.start : stretch.end])
        for encoding in plain.encode_batch_fast(pieces, add_special_tokens=False):
            ids += encoding.ids
    return ids


def _smallest_chunks(text: str) -> list[str]:
    return [text[start:end] for start, end in cut(text, 0, len(text), 0)]


def _normalizers(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [] if tokenizer.normalizer is None else _parts(_state(tokenizer.normalizer), "normalizers")


def _state(part: Any) -> dict[str, Any]:
    """A tokenizer's part as it stands in tokenizer.json."""
    return {"type": "none"} if part is None else cast(dict[str, Any], json.loads(part.__getstate__()))


def _parts(state: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [part for inner in state[name] for part in _parts(inner, name)]


def _alternatives(regex: str) -> list[str]:
    """What stands between the ``|`` of the outermost level."""
    alternatives = [""]
    depth, in_class, escaped = 0, False, False
    for char in regex:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            alternatives.append("")
            continue
        alternatives[-1] += char
    return alternatives
