"""Prompt lookup against a search that compares every place."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.engine.draft.prompt_lookup import MAX_AGREEMENT, MAX_PLACES, Guess, PromptLookup
from tests.unit.engine.memory import to_bytes


class Search:
    """The same guesses, without an index."""

    def __init__(self) -> None:
        self.source: tuple[int, int] | None = None

    def guess(self, ids: list[int], num_tokens: int) -> Guess | None:
        end = len(ids) - 1
        places = [place for place in range(end - 1, 0, -1) if ids[place - 1 : place + 1] == ids[end - 1 :]]
        candidates = places[:MAX_PLACES]
        if self.source is not None:
            candidates = [self.source[0] + end - self.source[1], *candidates]
        agreed = [self.agreement(ids, place) for place in candidates]
        if max(agreed, default=0) < 2:
            return None
        best = candidates[agreed.index(max(agreed))]
        self.source = best, end
        grown = list(ids)
        for place in range(best + 1, best + 1 + num_tokens):
            grown.append(grown[place])
        return Guess(tuple(grown[len(ids) :]), max(agreed))

    def agreement(self, ids: list[int], place: int) -> int:
        before = ids[: place + 1][::-1]
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, reversed(ids), strict=False))
        return min(MAX_AGREEMENT, len(list(pairs)))


@given(st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=40), st.integers(1, 8)), max_size=30), st.integers(1, 3))
def test_guesses_are_those_of_a_search_over_all_places(reads: list[tuple[list[int], int]], num_ids: int):
    lookup, search, ids = PromptLookup(), Search(), list[int]()
    for more, num_tokens in reads:
        ids += [1 + token_id % num_ids for token_id in more]
        lookup.read(to_bytes(ids))
        assert lookup.guess(num_tokens) == search.guess(ids, num_tokens)


def following(lookup: PromptLookup, num_tokens: int) -> tuple[int, ...]:
    guess = lookup.guess(num_tokens)
    return () if guess is None else guess.token_ids


def guess(ids: list[int], num_tokens: int) -> tuple[int, ...]:
    lookup = PromptLookup()
    lookup.read(to_bytes(ids))
    return following(lookup, num_tokens)


def test_what_followed_the_longest_agreement_is_guessed_and_of_equal_ones_the_latest():
    assert guess([9, 1, 2, 5, 8, 1, 2, 6, 7, 7, 9, 1, 2], 3) == (5, 8, 1)
    assert guess([9, 1, 2, 5, 8, 1, 2, 6, 7, 7, 3, 1, 2], 3) == (6, 7, 7)


def test_nothing_is_guessed_where_the_last_two_tokens_are_new_together():
    assert guess([], 4) == guess([1], 4) == guess([1, 2], 4) == guess([1, 2, 3, 2, 1], 4) == ()


def test_a_loop_is_guessed_to_go_round():
    assert guess([7, 1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)
    assert guess([4, 4, 4], 3) == (4, 4, 4)


def test_a_copy_goes_on_from_its_source_though_the_same_lines_came_again():
    line = list(range(100, 100 + MAX_AGREEMENT + 4))
    prompt = [*line, 1, *line, 2, *line, 3, 50]
    lookup, output = PromptLookup(), [60, *line, 1]
    lookup.read(to_bytes(prompt + output))
    assert following(lookup, 2) == (100, 101)
    for token_id in line:
        output.append(token_id)
        lookup.read(to_bytes(prompt + output))
        lookup.guess(1)
    assert following(lookup, 1) == (2,)


def test_a_long_sequence_is_forgotten_from_its_start_and_still_guessed_from_its_end():
    lookup, ids = PromptLookup(window=50), list[int]()
    for length in (30, 1, 80, 400, 3, 49, 1, 1):
        ids += range(len(ids), len(ids) + length)
        lookup.read(to_bytes(ids))
        assert len(lookup._ids) <= 100
        assert list(lookup._ids) == ids[-len(lookup._ids) :]
    lookup.read(to_bytes([*ids, *ids[-50:-45]]))
    assert following(lookup, 3) == tuple(ids[-45:-42])
