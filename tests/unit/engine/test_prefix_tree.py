import pytest

from services.engine.sequence import Sequence
from tests.unit.engine.memory import Memory, to_bytes

BLOCK = 4


@pytest.fixture
def memory() -> Memory:
    return Memory(num_blocks=16, block_tokens=BLOCK)


def store(memory: Memory, ids: list[int], scope: str = "a") -> None:
    """Run a sequence of ``ids`` to its end."""
    sequence = memory.sequence(ids, scope)
    copies = memory.cache.attach(sequence, memory.cache.match(sequence), len(ids))
    assert copies is not None
    memory.copy(copies)
    for copy in copies:
        memory.cache.copied(copy)
    memory.compute(sequence, sequence.num_computed, len(ids) - sequence.num_computed)
    sequence.num_computed = len(ids)
    memory.cache.release(sequence, len(ids))
    memory.check_accounts([])


def cached(memory: Memory, ids: list[int], scope: str = "a") -> int:
    return memory.tree.match(memory.tree.root(scope), to_bytes(ids), len(ids)).num_tokens(BLOCK)


def test_the_next_turn_resumes_at_the_exact_last_token(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6, 7])
    assert cached(memory, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 7


def test_an_exact_repeat_reuses_all_but_the_last_token(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6, 7, 8])
    sequence = memory.sequence([1, 2, 3, 4, 5, 6, 7, 8])
    assert memory.cache.match(sequence).num_tokens(BLOCK) == 7


def test_a_fork_inside_a_block_is_reused_to_the_token(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6, 7, 8])
    match = memory.tree.match(memory.tree.root("a"), to_bytes([1, 2, 3, 4, 5, 6, 9, 9]), 8)
    assert match.num_tokens(BLOCK) == 6
    assert match.is_fork


def test_an_append_is_no_fork(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6])
    assert not memory.tree.match(memory.tree.root("a"), to_bytes([1, 2, 3, 4, 5, 6, 7]), 7).is_fork
    assert not memory.tree.match(memory.tree.root("a"), to_bytes([1, 2, 3, 4, 5]), 5).is_fork


def test_scopes_share_nothing(memory: Memory):
    store(memory, [1, 2, 3, 4, 5], "a")
    assert cached(memory, [1, 2, 3, 4, 5], "b") == 0


def test_a_conversation_stays_one_run_of_blocks(memory: Memory):
    ids = [1, 2, 3, 4, 5]
    for turn in range(5):
        store(memory, ids)
        ids = [*ids, turn, 7, 7]
    sequence = memory.sequence(ids)
    assert memory.cache.attach(sequence, memory.cache.match(sequence), len(ids)) == []
    assert sequence.block_ids == list(range(sequence.block_ids[0], sequence.block_ids[0] + len(sequence.block_ids)))


def test_eviction_takes_the_tail_of_the_least_recently_used_first(memory: Memory):
    store(memory, [1] * 8 + [2] * 8)
    store(memory, [1] * 8 + [3] * 8)
    assert memory.tree.evict(1) == 1
    assert cached(memory, [1] * 8 + [2] * 8) == 12
    assert cached(memory, [1] * 8 + [3] * 8) == 16
    assert memory.tree.evict(2) == 2
    assert cached(memory, [1] * 8 + [2] * 8) == 8, "the shared blocks outlive both tails"
    memory.check_accounts([])


def test_pinned_state_is_never_evicted(memory: Memory):
    store(memory, [1] * 8)
    match = memory.tree.match(memory.tree.root("a"), to_bytes([1] * 8), 8)
    memory.tree.pin(match.path[-1])
    assert memory.tree.num_evictable() == 0
    assert memory.tree.evict(5) == 0
    memory.tree.unpin(match.path[-1])
    assert memory.tree.evict(5) == 2


def test_admission_evicts_others_but_never_its_own_hit(memory: Memory):
    store(memory, [1] * 16)
    store(memory, [2] * 44)
    sequence = memory.sequence([1] * 16 + [5] * 40)
    copies = memory.cache.attach(sequence, memory.cache.match(sequence), 56)
    assert copies == []
    assert sequence.num_computed == 16
    memory.check(sequence, 16)
    memory.check_accounts([sequence])


def test_what_cannot_be_admitted_evicts_nothing(memory: Memory):
    store(memory, [1] * 32)
    holder = memory.sequence([2] * 36)
    assert memory.cache.attach(holder, memory.cache.match(holder), 36) == [] or holder.block_ids
    before = memory.tree.num_blocks
    late = memory.sequence([3] * 60)
    assert memory.cache.attach(late, memory.cache.match(late), 60) is None
    assert memory.tree.num_blocks == before
    memory.check_accounts([holder])


def test_the_belt_does_not_grow_with_use(memory: Memory):
    store(memory, [1, 2, 3])
    root = memory.tree.root("a")
    for _ in range(5_000):
        node = memory.tree.match(root, to_bytes([1, 2, 3]), 3).tail
        assert node is not None
        memory.tree.pin(node)
        memory.tree.unpin(node)
    assert len(memory.tree._belt._used) < 2_000


def admit(memory: Memory, ids: list[int]) -> Sequence:
    return admit_sequence(memory, memory.sequence(ids))


def admit_sequence(memory: Memory, sequence: Sequence) -> Sequence:
    copies = memory.cache.attach(sequence, memory.cache.match(sequence), sequence.num_tokens)
    assert copies is not None
    memory.copy(copies)
    for copy in copies:
        memory.cache.copied(copy)
    return sequence


def test_a_tail_in_use_is_copied_not_extended(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6])
    first, second = admit(memory, [1, 2, 3, 4, 5, 6, 7]), admit(memory, [1, 2, 3, 4, 5, 6, 8])
    assert first.num_computed == second.num_computed == 6
    assert first.block_ids[1] != second.block_ids[1]
    for sequence in (first, second):
        memory.compute(sequence, 6, 1)
        sequence.num_computed = 7
    for sequence in (first, second):
        memory.check(sequence, 7)
        memory.cache.release(sequence, 7)
    memory.check_accounts([])
    assert cached(memory, [1, 2, 3, 4, 5, 6, 7]) == cached(memory, [1, 2, 3, 4, 5, 6, 8]) == 7


def test_two_that_compute_the_same_block_leave_one_and_lose_none(memory: Memory):
    store(memory, [1, 2, 3, 4, 5, 6])
    extending, copying = admit(memory, [1, 2, 3, 4, 5, 6, 7, 8, 9]), admit(memory, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    for sequence in (copying, extending):
        memory.compute(sequence, 6, 3)
        sequence.num_computed = 9
        memory.cache.publish(sequence)
    memory.check_accounts([copying, extending])
    assert len([s for s in (copying, extending) if s.owned]) == 2
    for sequence in (extending, copying):
        memory.check(sequence, 9)
        memory.cache.release(sequence, 9)
    memory.check_accounts([])
    assert memory.tree.num_blocks == 3


def test_a_flush_frees_what_nobody_uses_and_hides_the_rest(memory: Memory):
    store(memory, [1] * 10)
    store(memory, [2] * 10, scope="b")
    held = admit(memory, [1] * 10 + [3] * 3)
    before = memory.tree.num_blocks
    freed = memory.tree.flush(["a", "unknown"])
    assert memory.tree.num_blocks == before - freed
    assert cached(memory, [1] * 10) == 0
    assert cached(memory, [2] * 10, scope="b") == 10
    assert memory.tree.is_flushed("a", held.root)
    memory.check_accounts([held])
    held.num_computed = 13
    memory.cache.release(held, 13)
    memory.check_accounts([])
    assert cached(memory, [1] * 10) == 0
    assert memory.tree.evict(memory.pool.num_blocks) > 0
    assert memory.tree.num_blocks == 0


def test_what_begins_behind_a_flushed_root_is_seen_however_late(memory: Memory):
    held = admit(memory, [1] * 10)
    memory.tree.flush(["a"])
    memory.cache.release(held, 0)
    memory.tree.flush(["b"])
    again = admit_sequence(memory, held)
    memory.compute(again, 0, 10)
    again.num_computed = 10
    memory.cache.publish(again)
    memory.check_accounts([again])
    memory.cache.release(again, 0)
    memory.check_accounts([])


def test_what_a_waiting_request_would_hit_is_evicted_last_but_not_never(memory: Memory):
    store(memory, [1] * 10)
    store(memory, [2] * 8)
    waiting = memory.sequence([1] * 9 + [5])
    memory.protect(waiting)
    assert memory.tree.evict(2) == 2
    assert (cached(memory, [1] * 10), cached(memory, [2] * 8)) == (10, 0)
    assert memory.tree.evict(1) == 1
    store(memory, [3] * 8)
    assert memory.tree.evict(2) == 2
    assert (cached(memory, [1] * 10), cached(memory, [3] * 8)) == (8, 0), "what is left of it is protected still"
    memory.cache.unprotect(waiting)
    store(memory, [3] * 8)
    memory.tree.evict(1)
    assert (cached(memory, [1] * 10), cached(memory, [3] * 8)) == (4, 8)
    memory.check_accounts([])


def test_a_request_that_is_admitted_needs_no_protection_any_more(memory: Memory):
    store(memory, [1] * 10)
    waiting = memory.sequence([1] * 10 + [5])
    memory.protect(waiting)
    admit_sequence(memory, waiting)
    memory.cache.release(waiting, 0)
    store(memory, [2] * 4)
    assert memory.tree.evict(3) == 3
    assert (cached(memory, [1] * 10), cached(memory, [2] * 4)) == (0, 4)
