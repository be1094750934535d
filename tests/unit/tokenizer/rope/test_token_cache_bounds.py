"""What the caches below the rope hold, forget and find."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.rope.anchors import AnchorCache, common_prefix
from services.tokenizer.rope.chunks import ChunkCache
from services.tokenizer.rope.cuts import cut, split_words
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText, shared_markup
from services.tokenizer.rope.words import WordCache
from tests.unit.tokenizer.awkward_texts import plain_tokenizer, texts
from tests.unit.tokenizer.trained_tokenizers import FAMILIES, trained


@dataclass(frozen=True, slots=True)
class Anchor:
    text: str

    @property
    def num_chars(self) -> int:
        return len(self.text)


def held(cache: AnchorCache[Anchor], keys: str) -> str:
    return "".join(key for key in keys if cache.get(key) is not None)


def test_the_least_recently_used_anchor_goes_first() -> None:
    cache: AnchorCache[Anchor] = AnchorCache(max_entries=2, max_chars=100)
    cache.put("a", Anchor("x"))
    cache.put("b", Anchor("x"))
    cache.get("a")
    cache.put("c", Anchor("x"))
    assert held(cache, "abc") == "ac"
    assert len(cache) == 2


def test_anchors_are_bounded_by_their_characters() -> None:
    cache: AnchorCache[Anchor] = AnchorCache(max_entries=9, max_chars=10)
    cache.put("a", Anchor("x" * 4))
    cache.put("a", Anchor("x" * 6))
    assert cache.num_chars == 6
    cache.put("b", Anchor("x" * 5))
    assert (held(cache, "ab"), cache.num_chars) == ("b", 5)
    cache.put("c", Anchor("x" * 11))
    assert (held(cache, "abc"), cache.num_chars) == ("", 0)


def test_chunks_are_bounded_by_their_bytes() -> None:
    ids = np.zeros(100, np.int32)
    cache = ChunkCache(max_bytes=3 * (ids.nbytes + 300))
    keys = [cache.key(f"{i}") for i in range(5)]
    cache.put([(key, ids) for key in keys[:3]])
    cache.put([(keys[1], ids)])
    assert (len(cache), cache.num_bytes) == (3, 2100)
    cache.get(keys[:1])
    cache.put([(key, ids) for key in keys[3:]])
    assert [found is not None for found in cache.get(keys)] == [True, False, False, True, True]
    assert cache.num_bytes == 2100


def test_a_chunk_over_the_budget_is_not_kept() -> None:
    cache = ChunkCache(max_bytes=0)
    cache.put([(cache.key("x"), np.zeros(1, np.int32))])
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_keys_of_one_cache_mean_nothing_to_another() -> None:
    assert ChunkCache(1).key("x") != ChunkCache(1).key("x")


@given(st.text(), st.text(), st.text())
def test_the_common_prefix(shared: str, left: str, right: str) -> None:
    left, right = shared * 30 + left, shared * 30 + right
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


def test_the_common_prefix_where_characters_have_different_widths() -> None:
    text = "x" * 1000
    assert common_prefix(text, text + "😀") == 1000
    assert common_prefix(text + "é" + text, text + "漢") == 1000
    assert common_prefix("", "x") == 0


@given(st.text(alphabet="aB3 \n\u0301é", max_size=80), st.integers(0, 5))
def test_cuts_lie_between_ascii_letters_or_digits_and_white_space(text: str, chunk_chars: int) -> None:
    ranges = list(cut(text, 0, len(text), chunk_chars))
    assert "".join(text[start:end] for start, end in ranges) == text
    for _, end in ranges[:-1]:
        assert text[end - 1] in "aB3"
        assert text[end] in " \n"


@given(st.text(alphabet="aB3 \n\r\t'\"(-\u0301é\x1e", max_size=60))
def test_words_end_between_ascii_letters_or_digits_and_signs(text: str) -> None:
    words = split_words(text)
    assert "".join(words) == text
    for word, following in pairwise(words):
        assert word[-1] in "aB3"
        assert following[0] in ' \n\t"(-'


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_bytes", [0, 20 * 256, 2**20])
def test_words_give_the_ids_of_the_text(family: str, max_bytes: int) -> None:
    plain = plain_tokenizer(trained(family))
    cache = WordCache(plain, max_bytes)

    @settings(max_examples=25, deadline=None)
    @given(texts)
    def check(text: str) -> None:
        for _ in range(2):
            assert cache.encode(text).tolist() == plain.encode(text, add_special_tokens=False).ids
            assert cache.num_words <= max_bytes // 256

    check()


def test_text_with_the_separator_is_encoded_as_it_is() -> None:
    plain = plain_tokenizer(trained("llama3"))
    cache = WordCache(plain, 2**20)
    text = "the quick\x1ebrown fox\x1e\x1e"
    assert cache.encode(text).tolist() == plain.encode(text, add_special_tokens=False).ids
    assert cache.num_words == 0


def test_long_words_are_not_kept() -> None:
    cache = WordCache(plain_tokenizer(trained("llama3")), 2**20)
    cache.encode("x" * 65 + " y")
    assert cache.num_words == 1


def test_text_that_grows_keeps_its_chunks() -> None:
    text = "the quick brown fox " * 50
    short, long = list(cut(text, 0, 500, 16)), list(cut(text, 0, len(text), 16))
    assert long[: len(short) - 1] == short[:-1]


def span(start: int, end: int, *ids: int) -> ExactSpan:
    return ExactSpan(start, end, np.array(ids, np.int32))


@pytest.mark.parametrize(
    ("old", "new", "shared"),
    [
        (PromptText("x" * 9), PromptText("x" * 8), 8),
        (PromptText("x" * 9, ((1, 3),)), PromptText("x" * 9, ((1, 3),)), 9),
        (PromptText("x" * 9, ((1, 3),)), PromptText("x" * 9), 1),
        (PromptText("x" * 9, ((1, 3),)), PromptText("x" * 9, ((1, 5),)), 3),
        (PromptText("x" * 9, ((2, 3),)), PromptText("x" * 9, ((1, 3),)), 1),
        (PromptText("x" * 9, ((1, 3),)), PromptText("x" * 9, ((1, 3), (6, 7))), 6),
        (PromptText("x" * 9, (), (span(1, 3, 4),)), PromptText("x" * 9, (), (span(1, 3, 4), span(5, 6, 1))), 5),
        (PromptText("x" * 9, (), (span(1, 3, 4),)), PromptText("x" * 9, (), (span(1, 3, 5),)), 1),
        (PromptText("x" * 9, (), (span(1, 3, 4),)), PromptText("x" * 9, (), (span(1, 4, 4),)), 1),
        (PromptText("x" * 9, (), (span(4, 5, 4),)), PromptText("x" * 9, (), (span(2, 5, 4),)), 2),
    ],
)
def test_how_far_two_prompts_are_marked_alike(old: PromptText, new: PromptText, shared: int) -> None:
    assert shared_markup(old, new) == shared
    assert shared_markup(new, old) == shared
