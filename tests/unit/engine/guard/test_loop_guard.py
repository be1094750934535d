"""What the guard does about loops, by region."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import Action, LoopGuard, LoopKind, Verdict
from services.engine.guard.rules import EchoRules, GuardRules, Region, RepeatRules

NUM_WORDS = 200
LEXICON = Lexicon([f" w{chr(97 + n // 26)}{chr(97 + n % 26)}".encode() for n in range(NUM_WORDS)])
SENTENCE = list(range(10, 22))
NEWS = count(NUM_WORDS)
"""Tokens that never came before."""

SMALL = GuardRules(
    repeats=RepeatRules(max_period=12, min_copies=2, prose_tokens=((2, 8), (12, 6))),
    echoes=EchoRules(
        history_tokens=64, gram_tokens=3, jump_tokens=2, max_gap_tokens=4, min_deep_tokens=8, min_lag_tokens=4
    ),
    max_exclusions=2,
    probation_tokens=5,
    forgiven_tokens=30,
)

outputs = st.lists(
    st.tuples(
        st.sampled_from(Region),
        st.lists(st.integers(0, 5), min_size=1, max_size=7),
        st.integers(1, 8),
    ),
    max_size=6,
).map(lambda parts: [(token, region) for region, passage, times in parts for token in passage * times])


def push(guard: LoopGuard, tokens: list[int], region: Region = Region.PROSE) -> list[Verdict]:
    """Verdicts after each token."""
    verdicts: list[Verdict] = []
    for token in tokens:
        guard.push(token, region)
        verdicts.append(guard.verdict)
    return verdicts


def actions(verdicts: list[Verdict]) -> list[Action]:
    return [verdict.action for verdict in verdicts if verdict.action is not Action.NONE]


def until_a_verdict(guard: LoopGuard, passage: list[int], region: Region = Region.PROSE) -> int:
    """Say ``passage`` again and again; tokens until the guard has something against it."""
    for pushed in range(5000):
        guard.push(passage[pushed % len(passage)], region)
        if guard.verdict.action is not Action.NONE:
            return pushed + 1
    raise AssertionError("the guard let it pass")


def test_first_the_known_successor_is_excluded():
    guard = LoopGuard(LEXICON)
    pushed = until_a_verdict(guard, SENTENCE)
    assert pushed == len(SENTENCE) + 160
    assert guard.verdict == Verdict(
        Action.EXCLUDE, frozenset({SENTENCE[pushed % len(SENTENCE)]}), LoopKind.PATTERN, len(SENTENCE)
    )


def test_a_repeated_token_is_excluded():
    guard = LoopGuard(LEXICON)
    assert until_a_verdict(guard, [7]) == 201
    assert guard.verdict == Verdict(Action.EXCLUDE, frozenset({7}), LoopKind.TOKEN, 1)


def test_the_exclusion_is_for_one_sample():
    guard = LoopGuard(LEXICON)
    until_a_verdict(guard, SENTENCE)
    guard.push(next(NEWS))
    assert guard.verdict == Verdict()


def test_a_model_that_finds_something_new_to_say_is_left_alone():
    guard = LoopGuard(LEXICON)
    until_a_verdict(guard, SENTENCE)
    assert actions(push(guard, [next(NEWS) for _ in range(2000)])) == []


@pytest.mark.parametrize(("region", "last"), [(Region.PROSE, Action.END), (Region.REASONING, Action.CLOSE_REASONING)])
def test_a_loop_that_goes_on_around_the_exclusions_ends_the_region(region: Region, last: Action):
    guard = LoopGuard(LEXICON)
    pushed = until_a_verdict(guard, SENTENCE, region)
    place, taken = pushed % len(SENTENCE), [guard.verdict]
    for _ in range(400):
        token = SENTENCE[place]
        guard.push(next(NEWS) if token in guard.verdict.excluded else token, region)
        place = (place + 1) % len(SENTENCE)
        taken.append(guard.verdict)
        if guard.verdict.action in (Action.CLOSE_REASONING, Action.END):
            break
    assert actions(taken) == [Action.EXCLUDE] * 3 + [last]
    assert len(taken) < 200
    assert taken[-1].excluded == frozenset()


def test_an_ending_stays_until_the_region_changes():
    guard = LoopGuard(LEXICON)
    push(guard, SENTENCE * 60, Region.REASONING)
    assert guard.verdict.action is Action.CLOSE_REASONING
    guard.push(next(NEWS), Region.REASONING)
    assert guard.verdict.action is Action.CLOSE_REASONING
    guard.push(next(NEWS), Region.PROSE)
    assert guard.verdict == Verdict()


def test_interventions_are_forgotten_after_a_while_without():
    guard = LoopGuard(LEXICON)
    for _ in range(6):
        until_a_verdict(guard, SENTENCE)
        assert guard.verdict.action is Action.EXCLUDE
        push(guard, [next(NEWS) for _ in range(600)])


def test_loops_in_close_succession_end_the_output():
    guard, taken = LoopGuard(LEXICON), list[Action]()
    for start in range(10, 130, 12):
        until_a_verdict(guard, list(range(start, start + 12)))
        taken.append(guard.verdict.action)
        if taken[-1] is Action.END:
            break
        push(guard, [next(NEWS) for _ in range(60)])
    assert taken == [Action.EXCLUDE] * 3 + [Action.END]


def test_in_an_argument_more_is_needed_and_nothing_is_ended():
    guard = LoopGuard(LEXICON)
    assert until_a_verdict(guard, SENTENCE, Region.ARGUMENT) == len(SENTENCE) + 4 * 160
    taken = actions(push(guard, SENTENCE * 100, Region.ARGUMENT))
    assert len(taken) > 10
    assert set(taken) == {Action.EXCLUDE}


def test_restarts_inside_an_argument_are_the_clients_text():
    guard = LoopGuard(LEXICON)
    for change in range(60):
        assert actions(push(guard, [*range(40), 60 + change % 9, *range(40, 60)], Region.ARGUMENT)) == []


def test_restarts_are_excluded_by_what_followed_before():
    guard, verdicts = LoopGuard(LEXICON), list[Verdict]()
    for change in range(30):
        verdicts += push(guard, [*range(40), 60 + change % 9, *range(40, 60)])
    place, found = next((i, verdict) for i, verdict in enumerate(verdicts) if verdict.action is Action.EXCLUDE)
    # 7 of 61 tokens follow the change or are it.
    assert place % 61 not in range(40, 48)
    following = (place + 1) % 61
    assert found == Verdict(
        Action.EXCLUDE, frozenset({following if following < 40 else following - 1}), LoopKind.RESTART, 61
    )


def test_forced_tokens_are_not_counted():
    guard = LoopGuard(LEXICON)
    assert actions(push(guard, SENTENCE * 400, Region.FORCED)) == []
    push(guard, SENTENCE * 13)
    push(guard, [next(NEWS)] * 5, Region.FORCED)
    assert until_a_verdict(guard, SENTENCE) == len(SENTENCE) + 160 - 13 * len(SENTENCE)


def test_a_verdict_does_not_outlast_a_forced_token():
    guard = LoopGuard(LEXICON)
    until_a_verdict(guard, SENTENCE)
    guard.push(1, Region.FORCED)
    assert guard.verdict == Verdict()


def test_an_answer_may_repeat_what_was_drafted_while_thinking():
    guard, draft = LoopGuard(LEXICON), list(range(150))
    for _ in range(3):
        assert actions(push(guard, [*draft, next(NEWS)], Region.REASONING)) == []
    assert actions(push(guard, draft, Region.PROSE)) == []


@given(outputs, st.sets(st.integers(0, 60), max_size=3), outputs)
def test_clones_taken_on_the_way_change_nothing_and_are_judged_alike(
    output: list[tuple[int, Region]], cuts: set[int], drafts: list[tuple[int, Region]]
):
    def verdicts_of(pushed: list[tuple[int, Region]]) -> list[Verdict]:
        guard, verdicts = LoopGuard(LEXICON, SMALL), [Verdict()]
        for token, region in pushed:
            guard.push(token, region)
            verdicts.append(guard.verdict)
        return verdicts

    guard, verdicts = LoopGuard(LEXICON, SMALL), [Verdict()]
    for place, (token, region) in enumerate(output):
        if place in cuts:
            clone = guard.clone()
            for draft in drafts:
                clone.push(*draft)
            assert clone.verdict == verdicts_of(output[:place] + drafts)[-1]
        guard.push(token, region)
        verdicts.append(guard.verdict)
    assert verdicts == verdicts_of(output)
