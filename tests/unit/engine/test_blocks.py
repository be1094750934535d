from services.engine.blocks import BlockPool, num_runs


def test_a_new_pool_gives_one_run():
    pool = BlockPool(10)
    assert num_runs(pool.take(7)) == 1
    assert pool.num_free == 3


def test_blocks_behind_the_last_one_come_first():
    pool = BlockPool(10)
    first = pool.take(2)
    pool.take(2)
    pool.put(range(4))
    assert pool.take(3, after=first[0]) == [1, 2, 3]


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
