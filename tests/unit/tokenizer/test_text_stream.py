"""Sampled ids → text: never half a character, never part of a stop, never an exception."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.detokenize import TextStream, decode
from services.tokenizer.events import TokenLogprob, TokenLogprobs
from services.vocabulary import Vocabulary

HIDDEN = 256
# One id per byte, a special token, and pieces that cut characters and stops at odd places.
PIECES = [
    *(bytes([value]) for value in range(256)),
    b"<|end|>",
    b"",
    b"ab",
    b"abc",
    b"bca",
    b"\xf0\x9f",
    b"\x98\x80a",
    "é".encode(),
    b"\xe2\x82",
    b"END",
]
VOCABULARY = Vocabulary(PIECES, frozenset({HIDDEN}))

ids_lists = st.lists(st.sampled_from([*range(128, 256), *b"abcEND\n", *range(256, len(PIECES)), 10**6]), max_size=24)


def emitted(ids: Sequence[int], cuts: Sequence[int], stops: Sequence[str] = ()) -> tuple[list[str], str | None]:
    stream = TextStream(VOCABULARY, VOCABULARY.special_ids, stops)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    pieces = [stream.push(ids[start:end])[0] for start, end in pairwise(edges)]
    return [*pieces, stream.finish()[0]], stream.stop_text


def visible(ids: Sequence[int]) -> list[bytes]:
    return [VOCABULARY.spell(token_id) for token_id in ids if token_id != HIDDEN]


def first_stop(tokens: Sequence[bytes], stops: Sequence[bytes]) -> tuple[int, bytes] | None:
    """The naive rule: after each token, the stop that starts first, then the longest."""
    text = b""
    for token in tokens:
        text += token
        found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            start, _, stop = min(found)
            return start, stop
    return None


@given(ids_lists, st.lists(st.integers(0, 30), max_size=6))
def test_any_split_gives_the_text_of_the_whole(ids: list[int], cuts: list[int]) -> None:
    pieces, _ = emitted(ids, cuts)
    assert "".join(pieces) == b"".join(visible(ids)).decode(errors="replace")


@given(st.lists(st.integers(0, 255), max_size=12))
def test_one_byte_at_a_time_gives_the_text_of_the_whole(ids: list[int]) -> None:
    pieces, _ = emitted(ids, range(len(ids)))
    assert "".join(pieces) == bytes(ids).decode(errors="replace")


@given(st.text(max_size=12))
def test_valid_text_is_never_split_inside_a_character(text: str) -> None:
    data = text.encode()
    pieces, _ = emitted(list(data), range(len(data)))
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(
    ids_lists,
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.sampled_from(["ab", "abc", "bcab", "b", "END", "é", "😀", "aa", "\n\n", "Da"]), max_size=3),
)
def test_text_ends_before_the_first_stop(ids: list[int], cuts: list[int], stops: list[str]) -> None:
    pieces, stop_text = emitted(ids, cuts, stops)
    tokens = visible(ids)
    expected = first_stop(tokens, [stop.encode() for stop in stops])
    data = b"".join(tokens)
    if expected is None:
        assert stop_text is None
        assert "".join(pieces) == data.decode(errors="replace")
    else:
        start, stop = expected
        assert stop_text == stop.decode()
        assert "".join(pieces) == data[:start].decode(errors="replace")


@given(st.lists(st.sampled_from([*b"abcEND", 258, 259]), max_size=24))
def test_just_what_may_begin_a_stop_is_held(ids: list[int]) -> None:
    stop = "abcEND"
    stream, text, sampled = TextStream(VOCABULARY, frozenset(), [stop]), "", ""
    for token_id in ids:
        text += stream.push([token_id])[0]
        sampled += VOCABULARY.spell(token_id).decode()
        if stop in sampled:
            break
        held = max(size for size in range(len(stop)) if sampled.endswith(stop[:size]))
        assert text == sampled[: len(sampled) - held]


def test_a_held_prefix_is_released_when_it_turns_out_harmless() -> None:
    stream = TextStream(VOCABULARY, frozenset(), ["END"])
    assert stream.push(list(b"xEN"))[0] == "x"
    assert stream.push(list(b"Q"))[0] == "ENQ"
    assert stream.push(list(b"EN"))[0] == ""
    assert stream.finish()[0] == "EN"


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(VOCABULARY, frozenset(), ["END"])
    assert stream.push(list(b"aENDb"))[0] == "a"
    assert stream.stop_text == "END"
    assert stream.push(list(b"more"))[0] == ""
    assert stream.finish()[0] == ""


def test_special_tokens_are_no_text_but_decode_spells_them() -> None:
    pieces, _ = emitted([*b"ab", HIDDEN, *b"c"], [])
    assert "".join(pieces) == "abc"
    assert decode(VOCABULARY, [*b"ab", HIDDEN, 0xFF]) == "ab<|end|>\ufffd"


def test_log_probabilities_come_with_the_text_they_begin() -> None:
    def entry(token_id: int) -> TokenLogprobs:
        return TokenLogprobs(TokenLogprob(token_id, -1.0), ())

    stream = TextStream(VOCABULARY, VOCABULARY.special_ids, ["END"])
    ids = [*b"xE", HIDDEN]
    text, logprobs = stream.push(ids, [entry(token_id) for token_id in ids])
    assert (text, [(one.start, one.logprobs.sampled.token_id) for one in logprobs]) == ("x", [(0, ord("x"))])
    ids = [*b"yEND"]
    text, logprobs = stream.push(ids, [entry(token_id) for token_id in ids])
    found = [(one.start, one.logprobs.sampled.token_id) for one in logprobs]
    assert (text, found) == ("Ey", [(1, ord("E")), (2, ord("y"))])


def test_a_token_inside_a_character_is_placed_there() -> None:
    entry = TokenLogprobs(TokenLogprob(0, -1.0), ())
    stream = TextStream(VOCABULARY, VOCABULARY.special_ids, ())
    data = "aé😀b".encode()
    placed = [one for byte in data for one in stream.push([byte], [entry])[1]]
    assert [one.start for one in placed] == [0, 1, 1, 2, 2, 2, 2, 3]
