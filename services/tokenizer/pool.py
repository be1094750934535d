"""The threads that render and encode, with a bounded queue before them."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from services.tokenizer.errors import EncodeTimeoutError, OverloadedError

_Result = TypeVar("_Result")
_SMOOTHING = 0.1
_MIN_RETRY_S = 0.05


class EncodePool:
    """Owned by one event loop; ``close`` it."""

    def __init__(self, num_threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="encode")
        self._num_threads = num_threads
        self._max_pending = num_threads + max_waiting
        self._pending: set[Future[Any]] = set()
        self._mean_s = 0.01

    async def run(self, work: Callable[[], _Result], timeout_s: float) -> _Result:
        """The result of ``work`` in one of the threads.

        Raises OverloadedError at once when the queue is full, EncodeTimeoutError when the time is over; work that has
        not begun by then, or whose caller left, never runs.
        """
        self._pending = {future for future in self._pending if not future.done()}
        if len(self._pending) >= self._max_pending:
            retry_after_s = max(_MIN_RETRY_S, len(self._pending) * self._mean_s / self._num_threads)
            raise OverloadedError("too many prompts wait to be encoded", retry_after_s=retry_after_s)
        future = self._executor.submit(self._timed, work)
        self._pending.add(future)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            raise EncodeTimeoutError("the deadline passed before the prompt was encoded") from None

    def close(self) -> None:
        """Wait for running work; what still waits is dropped."""
        self._executor.shutdown(cancel_futures=True)

    def _timed(self, work: Callable[[], _Result]) -> _Result:
        start = time.perf_counter()
        try:
            return work()
        finally:
            # Written by several threads without a lock: an estimate may lose an update.
            self._mean_s += _SMOOTHING * (time.perf_counter() - start - self._mean_s)
