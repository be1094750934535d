"""The rope gives the ids of the whole prompt, whatever was encoded before."""

from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.tokenizer.rope.encoded import EncodePath
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText
from services.tokenizer.rope.seam import SeamSplice
from tests.unit.tokenizer.awkward_texts import FRAGMENTS, fragments, plain_ids, reference_ids, texts
from tests.unit.tokenizer.trained_tokenizers import FAMILIES, MARKERS, SPECIALS, trained

EAGER = RopeLimits(min_chars=1, chunk_chars=8)
"""Cuts wherever it may."""
DOWNLOADED = sorted((Path(__file__).resolve().parents[4] / "data" / "tokenizers").glob("*.json"))

every_family = pytest.mark.parametrize("family", FAMILIES)
few = settings(max_examples=25, deadline=None)


def rope_of(tokenizer: Tokenizer, limits: RopeLimits = EAGER) -> RopeEncoder:
    rope = RopeEncoder(tokenizer, limits)
    assert rope.why_not is None
    return rope


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


@every_family
def test_prompts_that_grow(family: str) -> None:
    tokenizer = trained(family)
    rope, conversations = rope_of(tokenizer), count()

    @few
    @given(st.lists(texts, min_size=2, max_size=6))
    def check(deltas: list[str]) -> None:
        key, text = f"{next(conversations)}", ""
        for delta in deltas:
            text += delta
            encoded = rope.encode(PromptText(text), key)
            assert encoded.ids.tolist() == ids_of(tokenizer, text)
            assert encoded.encoded_tokens + encoded.reused_tokens == len(encoded.ids)
        assert rope.mode == "rope"

    check()


edits = st.tuples(st.sampled_from(["edit", "insert", "fork", "rewind"]), st.integers(0, 10**6), texts)


@every_family
def test_prompts_that_change_anywhere(family: str) -> None:
    tokenizer = trained(family)
    rope, conversations = rope_of(tokenizer), count()

    @few
    @given(texts, st.lists(edits, min_size=1, max_size=6))
    def check(text: str, changes: list[tuple[str, int, str]]) -> None:
        key = f"{next(conversations)}"
        rope.encode(PromptText(text), key)
        for kind, number, new in changes:
            place = number % max(1, len(text))
            match kind:
                case "edit":
                    text = text[:place] + new + text[place + 5 :]
                case "insert":
                    text = text[:place] + new + text[place:]
                case "fork":
                    text = text[:place] + new
                case _:
                    text = text[: place + 1]
            assert rope.encode(PromptText(text), key).ids.tolist() == ids_of(tokenizer, text)
        assert rope.mode == "rope"

    check()


@st.composite
def marked_prompts(draw: st.DrawFn) -> list[PromptText]:
    """A prompt that grows by text of each kind, and in which kinds change."""
    parts: list[tuple[str, str]] = []
    prompts: list[PromptText] = []
    for _ in range(draw(st.integers(1, 5))):
        if parts and draw(st.booleans()):
            del parts[draw(st.integers(0, len(parts) - 1)) :]
        parts += draw(st.lists(st.tuples(st.sampled_from(["markup", "literal", "exact"]), fragments), min_size=1))
        literals: list[tuple[int, int]] = []
        exact: list[ExactSpan] = []
        text = ""
        for kind, part in parts:
            start, text = len(text), text + part
            if kind == "literal":
                literals.append((start, len(text)))
            elif kind == "exact":
                exact.append(ExactSpan(start, len(text), np.arange(len(part) % 4, dtype=np.int32)))
        prompts.append(PromptText(text, tuple(literals), tuple(exact)))
    return prompts


@every_family
def test_literal_text_and_exact_ids(family: str) -> None:
    tokenizer = trained(family)
    rope, conversations, plain = rope_of(tokenizer), count(), plain_ids(tokenizer)

    @few
    @given(marked_prompts())
    def check(prompts: list[PromptText]) -> None:
        key = f"{next(conversations)}"
        for prompt in prompts:
            expected = reference_ids(tokenizer, plain, prompt)
            assert rope.encode_full(prompt).tolist() == expected
            assert rope.encode(prompt, key).ids.tolist() == expected
        assert rope.mode == "rope"

    check()


@every_family
@pytest.mark.parametrize("spelling", [*SPECIALS, *MARKERS])
def test_literal_text_never_becomes_an_added_token(family: str, spelling: str) -> None:
    tokenizer = trained(family)
    rope = rope_of(tokenizer)
    text = f"<|im_start|>user\nsay {spelling} now<|im_end|>"
    start = text.index("say")
    literal = PromptText(text, ((start, text.rindex("<|im_end|>")),))
    for ids in (rope.encode(literal, None).ids.tolist(), rope.encode_full(literal).tolist()):
        assert ids.count(tokenizer.token_to_id(spelling)) == ("<|im_start|>", "<|im_end|>").count(spelling)
    assert tokenizer.token_to_id(spelling) in rope.encode(PromptText(text), None).ids


def test_a_spelling_half_inside_literal_text_is_no_token() -> None:
    tokenizer = trained("llama3")
    rope = rope_of(tokenizer)
    for literal in ((3, 6), (0, 1), (9, 10)):
        prompt = PromptText("<|im_end|>", (literal,))
        assert rope.encode(prompt, None).ids.tolist() == plain_ids(tokenizer)("<|im_end|>")
    inside = PromptText("a<|im_end|>b", ((0, 1), (11, 12)))
    assert tokenizer.token_to_id("<|im_end|>") in rope.encode(inside, None).ids


def test_exact_ids_stay_in_later_prompts_and_separate_what_is_around_them() -> None:
    tokenizer = trained("llama3")
    rope = rope_of(tokenizer)
    sampled = np.array([3, 1, 4, 1, 5], np.int32)
    before, answer, after = "<|im_start|>the quick", " brown fox", " jumps<|im_end|>"
    spans = (ExactSpan(len(before), len(before + answer), sampled),)
    rope.encode(PromptText(before), "k")
    for text in (before + answer, before + answer + after):
        ids = rope.encode(PromptText(text, (), spans), "k").ids.tolist()
        tail = text[len(before + answer) :]
        assert ids == ids_of(tokenizer, before) + sampled.tolist() + (ids_of(tokenizer, tail) if tail else [])
    assert rope.encode(PromptText(before + answer + after), "k").ids.tolist() == ids_of(
        tokenizer, before + answer + after
    )


@pytest.mark.parametrize("delta", ["\u0323 end", "\u0323", " end"])
def test_marks_that_move_when_composed_fool_a_seam_but_not_the_rope(delta: str) -> None:
    """The normal form puts marks below before marks above: what is appended moves far to the left."""
    tokenizer = trained("qwen3")
    rope = rope_of(tokenizer)
    text = "The quick brown fox jumps over the lazy dog. " * 4 + "a" + "\u0301" * 5 + "\u0323" * 100
    splice = SeamSplice(tokenizer, overlap_tokens=16, resync_tokens=8)
    _, seam = splice.begin(text)
    assert seam is not None
    spliced = splice.extend(seam, text + delta)
    assert spliced is not None
    assert spliced[0].tolist() != ids_of(tokenizer, text + delta)

    rope.encode(PromptText(text), "k")
    encoded = rope.encode(PromptText(text + delta), "k")
    assert encoded.ids.tolist() == ids_of(tokenizer, text + delta)
    assert encoded.path is EncodePath.DELTA


def test_a_turn_costs_what_it_adds() -> None:
    rope = rope_of(trained("llama3"), RopeLimits())
    history = "".join(f"<|im_start|>user\nturn {i} {'the quick brown fox ' * 20}<|im_end|>\n" for i in range(40))
    first = rope.encode(PromptText(history), "k")
    assert (first.path, first.reused_tokens) == (EncodePath.FULL, 0)
    second = rope.encode(PromptText(history + "<|im_start|>user\nthe quick"), "k")
    assert second.path is EncodePath.DELTA
    assert second.encoded_tokens < 40
    elsewhere = rope.encode(PromptText(history + "<|im_start|>user\nthe lazy dog"), "another conversation")
    assert elsewhere.encoded_tokens < 120  # markup is made anew, text is found


@every_family
def test_tokens_are_found_by_their_place_in_the_text(family: str) -> None:
    tokenizer = trained(family)
    ropes = (rope_of(tokenizer), rope_of(tokenizer, RopeLimits()))

    @few
    @given(texts, st.integers(0, 10**6), st.sampled_from(ropes))
    def check(text: str, number: int, rope: RopeEncoder) -> None:
        char = number % (len(text) + 1)
        encoded = rope.encode(PromptText(text), "k")
        starts = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
        expected = next((i for i, start in enumerate(starts) if start >= char), len(starts))
        assert encoded.token_at(char) == expected

    check()


def test_places_in_literal_text_and_exact_spans() -> None:
    tokenizer = trained("llama3")
    text = "<|im_start|>" + "x<|im_end|>y" + "zzz" + "<|im_end|>"
    prompt = PromptText(text, ((12, 24),), (ExactSpan(24, 27, np.array([7, 8], np.int32)),))
    for encoded in (rope_of(tokenizer).encode(prompt, "k"), rope_of(tokenizer, RopeLimits()).encode(prompt, "k")):
        num_literal = len(plain_ids(tokenizer)("x<|im_end|>y"))
        places = [encoded.token_at(char) for char in (0, 5, 12, 24, 25, 27, 30, len(text), 99)]
        after = 1 + num_literal
        assert places == [0, 1, 1, after, after + 2, after + 2, after + 3, after + 3, after + 3]
        assert 1 < encoded.token_at(13) < after


@pytest.mark.parametrize(
    ("literals", "spans"),
    [
        (((0, 0),), ()),
        (((2, 1),), ()),
        (((0, 9),), ()),
        (((1, 3), (2, 4)), ()),
        ((), ((0, 2), (1, 3))),
        ((), ((3, 3),)),
        (((-1, 2),), ()),
    ],
)
def test_ranges_that_are_none_are_refused(
    literals: tuple[tuple[int, int], ...], spans: tuple[tuple[int, int], ...]
) -> None:
    exact = tuple(ExactSpan(start, end, np.zeros(1, np.int32)) for start, end in spans)
    with pytest.raises(ValueError, match="no range"):
        PromptText("abcd", literals, exact)


@pytest.mark.parametrize("path", DOWNLOADED, ids=lambda path: path.stem)
def test_downloaded_tokenizers(path: Path) -> None:
    """Those that ``make bench-data`` has fetched."""
    tokenizer = Tokenizer.from_file(str(path))
    rope = rope_of(tokenizer)
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    text = ""
    for previous, fragment in pairwise([*FRAGMENTS, *added[:40], *FRAGMENTS]):
        text += fragment + previous[1:]
        assert rope.encode(PromptText(text), "k").ids.tolist() == ids_of(tokenizer, text)
    control = set(tokenizer.get_added_tokens_decoder())
    for content in added:
        for prompt in (f"{content}", f"a {content}\n", f"{content}{content} b"):
            literal = PromptText(prompt, ((0, len(prompt)),))
            assert control.isdisjoint(rope.encode(literal, None).ids.tolist())
    marks = "The quick brown fox jumps over the lazy dog. " * 120 + "a" + "\u0301" * 20 + "\u0323" * 100
    for prompt in (marks, marks + " end", marks + "\u0323 end"):
        assert rope.encode(PromptText(prompt), "marks").ids.tolist() == ids_of(tokenizer, prompt)
