"""Copies of earlier output, against a version without ring, hash roll and table."""

from collections.abc import Iterable
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from services.engine.guard.echoes import _HASH_BITS, _MULTIPLIER, _SLOT_BITS, EchoTracker
from services.engine.guard.lexicon import Lexicon
from services.engine.guard.rules import EchoRules

WORDS = [f" {a}{b}".encode() for a in "abcdefgh" for b in "ijklmnop"]
LEXICON = Lexicon(WORDS)
SMALL = EchoRules(
    history_tokens=64,
    gram_tokens=3,
    jump_tokens=2,
    max_gap_tokens=4,
    min_recurrences=2,
    min_deep_tokens=8,
    min_lag_tokens=4,
    tokens_per_jump=8,
)

passages = st.lists(st.integers(0, 11), min_size=1, max_size=14)
outputs = st.lists(st.tuples(passages, st.integers(1, 6)), max_size=8).map(
    lambda parts: [token for passage, times in parts for token in passage * times]
)


def joined(passages: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(passages))


def slot_of(output: list[int], place: int, gram: int) -> int:
    tokens = output[max(0, place - gram + 1) : place + 1]
    powers = [pow(_MULTIPLIER, back, 1 << _HASH_BITS) for back in range(len(tokens))]
    total = sum((token + 1) * power for token, power in zip(reversed(tokens), powers, strict=True))
    return total % (1 << _HASH_BITS) >> (_HASH_BITS - _SLOT_BITS)


class PlainEchoes:
    """Slow twin: keeps the whole output and looks everything up in it."""

    def __init__(self, rules: EchoRules) -> None:
        self.rules = rules
        self.output: list[int] = []
        self.lag = 0
        self.last_echo = -1
        self.echoes: set[int] = set()

    def agreement(self, lag: int) -> int:
        late, early = self.output, self.output[:-lag] if lag else []
        pairs = zip(reversed(late), reversed(early), strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), len(early))

    def latest_copy(self) -> int | None:
        """Lag of the latest place whose tokens fall into the same slot."""
        gram = self.rules.gram_tokens
        place = len(self.output) - 1
        wanted = slot_of(self.output, place, gram)
        places = [at for at in range(place) if slot_of(self.output, at, gram) == wanted]
        return place - places[-1] if places else None

    def push(self, token: int) -> None:
        rules = self.rules
        reach = rules.gram_tokens + rules.jump_tokens
        self.output.append(token)
        place = len(self.output) - 1
        agreed = self.agreement(self.lag) if self.lag else 0
        if agreed < rules.gram_tokens and place - self.last_echo >= reach:
            lag = self.latest_copy()
            if lag is not None and lag <= rules.history_tokens - reach:
                found = self.agreement(lag)
                if found >= rules.gram_tokens:
                    self.lag, agreed = lag, min(found, reach)
        if agreed >= rules.gram_tokens:
            self.echoes |= set(range(max(self.last_echo + 1, place - agreed + 1), place + 1))
            self.last_echo = place


@given(outputs)
def test_echoes_are_those_that_a_look_at_the_whole_output_finds(output: list[int]):
    tracker, twin = EchoTracker(SMALL, LEXICON), PlainEchoes(SMALL)
    for token in output:
        tracker.push(token)
        twin.push(token)
        assert (tracker.lag, tracker.num_echoes) == (twin.lag, len(twin.echoes))
        assert tracker.is_echo == (twin.last_echo == len(twin.output) - 1 and bool(twin.echoes))


@given(outputs)
def test_successors_are_what_followed_the_last_tokens_before(output: list[int]):
    tracker = EchoTracker(SMALL, LEXICON)
    for token in output:
        tracker.push(token)
    held = output[-SMALL.history_tokens :]
    last = held[-3:]
    after = {held[at + 3] for at in range(len(held) - 3) if held[at : at + 3] == last}
    assert tracker.successors() == (after if len(last) == 3 else frozenset())


@given(outputs, outputs, outputs)
def test_a_clone_and_its_original_go_their_own_ways(before: list[int], one: list[int], other: list[int]):
    def state(tracker: EchoTracker) -> tuple[int, int, bool, frozenset[int]]:
        return tracker.lag, tracker.num_echoes, tracker.is_loop, tracker.successors()

    def pushed(*outputs: list[int]) -> EchoTracker:
        tracker = EchoTracker(SMALL, LEXICON)
        for token in joined(outputs):
            tracker.push(token)
        return tracker

    original = pushed(before)
    clone = original.clone()
    for token in one:
        original.push(token)
    for token in other:
        clone.push(token)
    assert state(original) == state(pushed(before, one))
    assert state(clone) == state(pushed(before, other))


def first_loop(output: list[int]) -> int | None:
    tracker = EchoTracker(EchoRules(), LEXICON)
    for length, token in enumerate(output, 1):
        tracker.push(token)
        if tracker.is_loop:
            return length
    return None


def test_a_passage_that_comes_again_with_changes_is_a_loop_from_its_fourth_recurrence_on():
    found = first_loop(joined([*range(20), 40 + n % 5, *range(20, 40)] for n in range(20)))
    assert found is not None
    assert 4 * 41 < found < 10 * 41


def test_columns_of_few_words_are_no_loop():
    rows = [[0, 1] * 20, [0, 1] * 14 + [2, 1] * 6, [2, 1] * 20, [0, 1] * 8 + [3, 1] * 12]
    assert first_loop(joined(rows[n * n % 4] for n in range(60))) is None


def test_passages_with_new_words_between_are_no_loop():
    passage = list(range(40))
    fresh = iter(range(100, 100000))
    assert first_loop(joined([*passage, *(next(fresh) for _ in range(40))] for _ in range(40))) is None


def test_a_list_that_brings_new_words_is_no_loop():
    lexicon = Lexicon([*WORDS, *(f" name{chr(97 + n % 26)}{chr(97 + n // 26)}".encode() for n in range(400))])
    tracker = EchoTracker(EchoRules(), lexicon)
    for n in range(60):
        for token in [*range(20), 64 + n, *range(20, 40)]:
            tracker.push(token)
            assert not tracker.is_loop


def test_what_is_markup_in_good_part_is_no_loop():
    lexicon = Lexicon([*WORDS[:30], *([b"|"] * 34)])
    tracker = EchoTracker(EchoRules(), lexicon)
    for n in range(40):
        for token in [*range(15), 40 + n % 24, *range(15, 40)]:
            tracker.push(token)
            assert not tracker.is_loop
