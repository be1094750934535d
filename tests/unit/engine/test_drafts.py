"""Drafts in the step loop: whatever is guessed, outputs, ends, cached state and blocks are those without guesses."""

from __future__ import annotations

import os
import random
from collections import abc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.draft.draft_length import MAX_DRAFT, Draft
from services.engine.draft.drafter import Drafter
from services.engine.request import FinishReason, Tokens
from services.engine.sequence import Sequence
from tests.unit.engine.memory import to_ids
from tests.unit.engine.test_scheduler import (
    BLOCK,
    CONTEXT,
    Loop,
    ends,
    expected,
    finished,
    next_token,
    output,
    output_of,
)

EXAMPLES = 400 if os.environ.get("FENCEPOST_SOAK") else 40


class Guesser(Drafter):
    """Guesses that are right for a while, or not at all, and always worth computing."""

    def __init__(self, seed: int, choice: int = 0, *, is_always_right: bool = False) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._choice = choice
        self._is_always_right = is_always_right

    def propose(self, token_ids: bytes | bytearray, num_tokens: int, forced: abc.Sequence[int] = ()) -> Draft:
        super().propose(token_ids, num_tokens)
        length = min(num_tokens, MAX_DRAFT)
        num_right = length if self._is_always_right else self._random.randint(0, length)
        guesses = to_ids(token_ids)
        for place in range(length):
            guesses += (next_token(guesses, self._choice) if place < num_right else self._random.randint(1, 9),)
        return Draft(guesses[len(guesses) - length :], 1.0)


def start(loop: Loop, ids: list[int], drafter: Drafter, **options: object) -> Sequence:
    sequence = loop.add(ids, **options)
    sequence.drafter = drafter
    return sequence


def cached(loop: Loop) -> set[bytes]:
    """All prefixes that the tree holds."""
    tree = loop.memory.tree
    return {b"".join(node.token_ids for node in tree.path(leaf)) for leaf in tree.nodes()}


def check_cached_state(loop: Loop) -> None:
    for node in loop.memory.tree.nodes():
        ids = to_ids(b"".join(above.token_ids for above in loop.memory.tree.path(node)))
        for slot in range(node.num_tokens):
            length = len(ids) - node.num_tokens + slot + 1
            assert loop.memory.slots[node.block_id, slot] == ids[:length], "state of a guess was kept"


def account(loop: Loop, sequence: Sequence) -> tuple[int, ...]:
    """What a sequence and the pool hold, with as much of an output."""
    cache = loop.memory.cache
    return (
        sequence.num_output,
        sequence.num_computed,
        len(sequence.block_ids),
        cache.pool.num_free,
        cache.tree.num_blocks,
    )


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_any_drafts_give_the_ends_the_cache_and_the_blocks_of_none(data: st.DataObject):
    num_blocks, step_tokens = data.draw(st.integers(12, 40)), data.draw(st.integers(1, 24))
    drafted, plain = (Loop(num_blocks, step_tokens, drafts=drafts) for drafts in (True, False))
    known: list[list[int]] = [[]]
    for _ in range(data.draw(st.integers(1, 4))):
        base = data.draw(st.sampled_from(known))
        ids = (base + data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=10)))[:30]
        tokens = expected(ids, 30)
        text = b"".join(b"%d" % token_id for token_id in tokens)
        place, length = data.draw(st.integers(0, 29)), data.draw(st.integers(1, 4))
        options: dict[str, object] = {
            "max_tokens": data.draw(st.integers(1, 30)),
            "stop_texts": data.draw(st.sampled_from([(), (text[place : place + length],), (b"no digits",)])),
            "stop_token_ids": data.draw(st.sampled_from([frozenset(), frozenset({tokens[place]})])),
        }
        one = start(drafted, ids, Guesser(data.draw(st.integers(0, 10**6))), **options)
        other = plain.add(ids, **options)
        accounts = set[tuple[int, ...]]()
        while finished_or_none(other) is None:
            plain.step()
            accounts.add(account(plain, other))
        while finished_or_none(one) is None:
            drafted.step()
            assert account(drafted, one) in accounts
            check_cached_state(drafted)
        assert output(one) == output(other)
        left, right = finished(one), finished(other)
        assert (left.reason, left.stop_text, left.output_tokens, left.cache) == (
            right.reason,
            right.stop_text,
            right.output_tokens,
            right.cache,
        )
        assert output_of(one, 0) == output(one), "what was not taken is not reported"
        assert drafted.terminals[-1].num_tokens == plain.terminals[-1].num_tokens
        assert cached(drafted) == cached(plain)
        assert right.drafted_tokens == right.accepted_tokens == 0
        assert 0 <= left.accepted_tokens <= min(left.drafted_tokens, left.output_tokens - 1)
        known.append(ids + output(one))


def finished_or_none(sequence: Sequence) -> object:
    return ends(sequence).get(0)


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_many_at_once_get_their_outputs_though_some_are_preempted_or_leave(data: st.DataObject):
    loop = Loop(data.draw(st.integers(16, 32)), data.draw(st.integers(1, 30)), data.draw(st.integers(1, 5)))
    requests: list[tuple[list[int], int, Sequence]] = []
    for number in range(data.draw(st.integers(1, 8))):
        ids = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=25))
        count = data.draw(st.integers(1, 30))
        requests.append((ids, count, start(loop, ids, Guesser(number), max_tokens=count)))
        for _ in range(data.draw(st.integers(0, 5))):
            loop.step()
            check_cached_state(loop)
        if data.draw(st.integers(0, 5)) == 0:
            requests.pop()[2].cancel()
    loop.run()
    check_cached_state(loop)
    for ids, count, sequence in requests:
        assert output(sequence) == expected(ids, count)
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0


def test_right_drafts_are_taken_in_few_steps_and_counted():
    loop = Loop(step_tokens=64)
    sequence = start(loop, [1, 2, 3], Guesser(0, is_always_right=True), max_tokens=33)
    steps = [loop.step() for _ in range(3)]
    assert [len(row.draft) for plan in steps for row in plan.rows] == [0, MAX_DRAFT, MAX_DRAFT]
    assert output(sequence) == expected([1, 2, 3], 33)
    end = finished(sequence)
    assert (end.drafted_tokens, end.accepted_tokens, end.output_tokens) == (30, 30, 33)
    events = [event for event in sequence.outbox._events if isinstance(event, Tokens)]
    assert [len(event.ids) for event in events] == [1, 16, 16]


def test_an_end_token_inside_a_draft_that_is_right_ends_the_output_there():
    tokens = expected([1, 2, 3], 16)
    at = next(i for i in range(3, 16) if tokens[i] not in tokens[:i])
    loop = Loop(step_tokens=64)
    stop = frozenset({tokens[at]})
    sequence = start(loop, [1, 2, 3], Guesser(0, is_always_right=True), max_tokens=40, stop_token_ids=stop)
    loop.run()
    end = finished(sequence)
    assert (end.reason, end.output_tokens, end.accepted_tokens) == (FinishReason.STOP, at + 1, at)
    assert output_of(sequence, 0) == tokens[: at + 1]
    assert loop.terminals[0].num_tokens == 3 + at
    assert max(len(prefix) // 4 for prefix in cached(loop)) == 3 + at


def test_a_stop_text_across_tokens_of_a_draft_ends_the_output_at_its_last_one():
    tokens = expected([1, 2, 3], 20)
    text = "".join(map(str, tokens))
    stop = text[5:8]
    loop = Loop(step_tokens=64)
    sequence = start(loop, [1, 2, 3], Guesser(0, is_always_right=True), max_tokens=40, stop_texts=(stop.encode(),))
    loop.run()
    end = finished(sequence)
    assert (end.reason, end.output_tokens) == (FinishReason.STOP_TEXT, text.index(stop) + 3)
    assert output_of(sequence, 0) == tokens[: text.index(stop) + 3]
    assert loop.terminals[0].num_tokens == 3 + text.index(stop)


def test_drafts_stop_at_the_context_and_at_the_last_token():
    for options, count in (({"max_tokens": 5}, 5), ({}, CONTEXT - 50)):
        loop = Loop(step_tokens=64)
        sequence = start(loop, [1] * 50, Guesser(0, is_always_right=True), **options)
        loop.run()
        end = finished(sequence)
        assert (end.reason, end.output_tokens, end.drafted_tokens) == (FinishReason.LENGTH, count, count - 2)
        assert output(sequence) == expected([1] * 50, count)


def test_a_request_that_wants_none_gets_none():
    loop = Loop(step_tokens=64, drafts=False)
    sequence = start(loop, [1, 2, 3], Guesser(0), max_tokens=9)
    loop.run()
    assert finished(sequence).drafted_tokens == 0


def test_drafts_take_free_blocks_only_and_nobody_gives_way_to_them():
    loop = Loop(num_blocks=16, step_tokens=64)
    loop.add([7] * 35, max_tokens=1)
    loop.run()
    kept = cached(loop)
    other = loop.add([8] * 12, max_tokens=3)
    sequence = start(loop, [9], Guesser(0, is_always_right=True), max_tokens=40)
    loop.step()
    free = loop.memory.pool.num_free
    assert free < MAX_DRAFT // BLOCK
    (row,) = [row for row in loop.step().rows if row.sequence is sequence]
    assert len(row.draft) == (len(sequence.block_ids)) * BLOCK - 2
    assert kept <= cached(loop)
    assert output(other) == expected([8] * 12, 2)
    loop.run()
    assert output(sequence) == expected([9], 40)


@pytest.mark.parametrize("steps", range(5))
def test_a_cancelled_request_leaves_only_what_it_was_told(steps: int):
    loop = Loop(step_tokens=64)
    sequence = start(loop, [1, 2, 3], Guesser(5), max_tokens=60)
    for _ in range(steps):
        loop.step()
    sequence.cancel()
    loop.run()
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0
    told = to_ids(sequence.token_ids)
    assert all(told[: len(prefix) // 4] == to_ids(prefix) for prefix in cached(loop))
    check_cached_state(loop)


def test_a_failed_step_keeps_nothing_of_its_drafts():
    loop = Loop(step_tokens=64)
    sequence = start(loop, [1, 2, 3], Guesser(0, is_always_right=True), max_tokens=60)
    loop.step()
    plan = loop.scheduler.schedule()
    assert plan.rows[0].draft_blocks
    loop.scheduler.fail(plan, "broken")
    assert {to_ids(prefix) for prefix in cached(loop)} == {(1, 2, 3)}
    assert loop.memory.cache.use([]).held == 0
    loop.memory.check_accounts([])
    assert output(sequence) == expected([1, 2, 3], 1)


def test_drafts_leave_half_of_a_step_to_prompts():
    loop = Loop(num_blocks=40, step_tokens=21)
    drafting = start(loop, [1, 2, 3], Guesser(0, is_always_right=True), max_tokens=50)
    loop.step()
    loop.add([5] * 40, max_tokens=1)
    plan = loop.step()
    assert [(row.num_tokens, len(row.draft)) for row in plan.rows] == [(1, 10), (10, 0)]
    assert output(drafting) == expected([1, 2, 3], 12)
