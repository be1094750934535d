"""Work that runs to its end whatever becomes of the call that started it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """Tasks that nobody cancels; ``settle`` waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start and do not wait."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def shielded(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Start and wait; being cancelled ends only the waiting."""
        return await asyncio.shield(self.spawn(work))

    async def settle(self) -> None:
        """Wait until nothing runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Read here, because a caller that was cancelled doesn't.
        if not task.cancelled():
            task.exception()
