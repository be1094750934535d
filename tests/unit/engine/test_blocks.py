from services.engine.blocks import BlockPool, num_runs


def test_a_new_pool_gives_one_run():
    pool = BlockPool(10)
    assert num_runs(pool.take(7)) == 1
    assert pool.num_free == 3


def test_blocks_behind_the_last_one_come_first():
    pool = BlockPool(10)
    first, second = pool.take(2), pool.take(2)
    pool.put(first + second)
    assert pool.take(3, after=first[0]) == [1, 2, 3]


def test_sequences_that_grow_by_turns_stay_one_run_each():
    pool = BlockPool(800)
    tables = [pool.take(6) for _ in range(4)]
    for _ in range(60):
        for table in tables:
            table += pool.take(1, after=table[-1])
    assert [num_runs(table) for table in tables] == [1, 1, 1, 1]


def test_a_growing_sequence_that_meets_another_goes_on_with_room_ahead():
    pool = BlockPool(40)
    first = pool.take(4)
    pool.take(4, after=first[-1])
    for _ in range(10):
        first += pool.take(1, after=first[-1])
    assert num_runs(first) == 2


def test_room_to_grow_is_given_up_where_a_run_is_needed_whole():
    pool = BlockPool(40)
    pool.take(2)
    assert num_runs(pool.take(37)) == 1


def test_the_longest_run_is_preferred_and_any_number_of_runs_is_given():
    pool = BlockPool(10)
    pool.take(10)
    pool.put([0, 3, 4, 5, 8])
    assert pool.take(2) == [3, 4]
    assert sorted(pool.take(3)) == [0, 5, 8]
    assert pool.num_free == 0


def test_runs_are_counted():
    assert num_runs([]) == 0
    assert num_runs([4]) == 1
    assert num_runs([4, 5, 9, 10, 2]) == 3
