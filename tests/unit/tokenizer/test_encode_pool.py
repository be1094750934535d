"""The bounded pool: refuses at once, honours deadlines, drops what nobody waits for."""

import asyncio
import threading

import pytest

from services.tokenizer.errors import EncodeTimeoutError, OverloadedError
from services.tokenizer.pool import EncodePool


async def test_a_full_queue_refuses_at_once_with_a_delay_and_then_recovers() -> None:
    pool, gate = EncodePool(num_threads=1, max_waiting=1), threading.Event()
    running = asyncio.create_task(pool.run(gate.wait, 10))
    waiting = asyncio.create_task(pool.run(lambda: "done", 10))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError) as caught:
        await pool.run(lambda: None, 10)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s > 0
    gate.set()
    assert await running is True
    assert await waiting == "done"
    assert await pool.run(lambda: "again", 10) == "again"
    pool.close()


async def test_a_deadline_ends_the_wait_and_the_work_never_runs() -> None:
    pool, gate, ran = EncodePool(num_threads=1, max_waiting=4), threading.Event(), list[int]()
    running = asyncio.create_task(pool.run(gate.wait, 10))
    await asyncio.sleep(0)
    with pytest.raises(EncodeTimeoutError):
        await pool.run(lambda: ran.append(1), 0.01)
    gone = asyncio.create_task(pool.run(lambda: ran.append(2), 10))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    gate.set()
    await running
    await pool.run(lambda: ran.append(3), 10)
    assert ran == [3]
    pool.close()


async def test_an_error_of_the_work_reaches_its_caller() -> None:
    pool = EncodePool(num_threads=1, max_waiting=1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0, 10)
    pool.close()
