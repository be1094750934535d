"""The tokens that a tokenizer finds in a text before anything else: special ones, and all others added to it.

Source of the semantics: ``AddedVocabulary`` of the tokenizers library. Tokens that are not normalized are searched
first, in the raw text; the normalized ones in what is left between them. Both searches are leftmost-longest.
"""

import re
from collections.abc import Iterator
from typing import TypeAlias

from tokenizers import Tokenizer

Match: TypeAlias = tuple[int, int, int]
"""First character, the one behind the last, token id."""

_Trie: TypeAlias = "dict[str, _Trie]"
"""Spellings by character; the empty string marks where one ends."""


class AddedTokens:
    """The added tokens of one tokenizer; immutable."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        decoder = tokenizer.get_added_tokens_decoder()
        self.tokens = tuple(token for token in decoder.values() if token.content)
        self.contents = tuple(token.content for token in self.tokens)
        self.longest_chars = max(map(len, self.contents), default=0)
        self._ids = {token.content: token_id for token_id, token in decoder.items()}
        self._token_by_content = {token.content: token for token in self.tokens}
        self._raw = _spelling_pattern(t.content for t in self.tokens if not t.normalized)
        self._normalized = _spelling_pattern(t.content for t in self.tokens if t.normalized)
        self._trims = any(token.lstrip or token.rstrip or token.single_word for token in self.tokens)

    @property
    def lookahead_chars(self) -> int:
        """Text further than this behind a character cannot change how the text before that character is matched.

        Each of the two searches looks at most one spelling ahead.
        """
        return 2 * self.longest_chars

    def id_of(self, content: str) -> int:
        """The id of the added token that is spelt ``content``."""
        return self._ids[content]

    def find(self, text: str, start: int, end: int) -> list[Match]:
        """Added tokens in ``text[start:end]``, in order, as if nothing were around it."""
        matches: list[Match] = []
        position = start
        for found in self._raw.finditer(text, start, end) if self._raw else ():
            matches += self._find_normalized(text, position, found.start())
            matches.append((found.start(), found.end(), self._ids[found[0]]))
            position = found.end()
        matches += self._find_normalized(text, position, end)
        return list(self._trim(text, start, end, matches)) if self._trims else matches

    def _find_normalized(self, text: str, start: int, end: int) -> list[Match]:
        if self._normalized is None or start >= end:
            return []
        return [(m.start(), m.end(), self._ids[m[0]]) for m in self._normalized.finditer(text, start, end)]

    def _trim(self, text: str, start: int, end: int, matches: list[Match]) -> Iterator[Match]:
        """Drops tokens that stand inside a word and must not; widens those that swallow the spaces beside them."""
        previous = start
        for match_start, match_end, token_id in matches:
            token = self._token_by_content[text[match_start:match_end]]
            before, after = text[match_start - 1 : match_start], text[match_end : match_end + 1]
            inside_word = (match_start > start and _is_word(before)) or (match_end < end and _is_word(after))
            if match_start < previous or (token.single_word and inside_word):
                continue
            if token.lstrip:
                while match_start > previous and text[match_start - 1].isspace():
                    match_start -= 1
            if token.rstrip:
                while match_end < end and text[match_end].isspace():
                    match_end += 1
            previous = match_end
            yield match_start, match_end, token_id


def _is_word(char: str) -> bool:
    return re.match(r"\w", char) is not None


def _spelling_pattern(contents: Iterator[str]) -> re.Pattern[str] | None:
    """Finds the longest of ``contents`` at the first place where there is one; None when there are none."""
    root: _Trie = {}
    for content in contents:
        node = root
        for char in content:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_alternatives(root)) if root else None


def _alternatives(node: _Trie) -> str:
    # A trie: with a thousand tokens that all begin alike, plain alternatives would each be tried at every "<".
    branches = [re.escape(char) + _alternatives(child) for char, child in node.items() if char]
    if not branches:
        return ""
    joined = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return joined + "?" if "" in node else joined
