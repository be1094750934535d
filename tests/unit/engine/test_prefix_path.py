from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.match import follow
from services.engine.prefix_tree import Node
from tests.unit.engine.memory import Memory

BLOCK = 2


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_path_that_is_followed_equals_one_that_is_matched_anew(data: st.DataObject):
    memory = Memory(14, BLOCK)
    prompts = st.lists(st.integers(1, 2), min_size=1, max_size=16)
    waiting = [(memory.sequence(data.draw(prompts)), list[Node]()) for _ in range(3)]
    for _ in range(data.draw(st.integers(1, 8))):
        sequence = memory.sequence(data.draw(prompts))
        copies = memory.cache.attach(sequence, memory.cache.match(sequence), sequence.num_tokens)
        if copies is not None:
            memory.copy(copies)
            for copy in copies:
                memory.cache.copied(copy)
            memory.compute(sequence, sequence.num_computed, sequence.num_pending)
            sequence.num_computed = sequence.num_tokens
            memory.cache.release(sequence, sequence.num_tokens)
        memory.tree.evict(data.draw(st.integers(0, 5)))
        for other, path in waiting:
            if data.draw(st.booleans()):
                follow(path, other.root, other.token_ids, other.num_tokens - 1, BLOCK)
                assert tuple(path) == memory.cache.match(other).path
