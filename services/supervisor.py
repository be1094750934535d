"""Runs a group of processes as one: started together, kept alive one by one, stopped in order.

Knows nothing of what the processes are; ``services.up`` says that.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from typing import Final

from services.child import Child, ChildSpec
from services.console import Console

_POLL_S: Final = 0.1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs the children once; a second run needs a second supervisor."""

    def __init__(
        self,
        stages: Sequence[Sequence[ChildSpec]],
        console: Console,
        *,
        name: str,
        grace_s: float,
        notice_interval_s: float = 5.0,
    ) -> None:
        """``stages`` are groups of children in the order in which they stop.

        Each stage gets ``grace_s`` seconds. ``name`` is the console's name for the supervisor's own lines; while
        children are not healthy it says so every ``notice_interval_s`` seconds.
        """
        self._console = console
        self._name = name
        self._grace_s = grace_s
        self._notice_interval_s = notice_interval_s
        self._stages = [[self._child(spec) for spec in stage] for stage in stages]
        self._children = [child for stage in self._stages for child in stage]
        self._stop = asyncio.Event()
        self._was_killed = False

    async def run(self, on_healthy: Callable[[float], None]) -> bool:
        """Run until SIGINT, SIGTERM or SIGHUP, then stop everything; whether every child ended by itself.

        ``on_healthy`` is called once, with the seconds that it took, as soon as all children are healthy at a time. A
        second signal kills whatever still runs. Raises the first ChildError or OSError of a child, after the others
        have stopped.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        tasks = [asyncio.create_task(child.run(), name=child.spec.name) for child in self._children]
        try:
            await self._until_stop(tasks, on_healthy)
        finally:
            is_clean = await self._stop_all()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return is_clean

    async def _until_stop(self, tasks: Sequence[asyncio.Task[None]], on_healthy: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        next_notice_at = started_at + self._notice_interval_s
        is_ready = False
        stop = asyncio.create_task(self._stop.wait())
        while True:
            done, _ = await asyncio.wait(
                {stop, *tasks}, timeout=None if is_ready else _POLL_S, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                stop.cancel()
                return
            waiting = [child.spec.name for child in self._children if not child.is_healthy]
            elapsed_s = loop.time() - started_at
            if not waiting:
                is_ready = True
                on_healthy(elapsed_s)
            elif loop.time() >= next_notice_at:
                next_notice_at += self._notice_interval_s
                self._say(f"waiting for {', '.join(waiting)} ({elapsed_s:.0f} s)")

    async def _stop_all(self) -> bool:
        is_clean = True
        for stage in self._stages:
            endings = await asyncio.gather(*(child.stop(self._grace_s) for child in stage))
            for child, has_ended_itself in zip(stage, endings, strict=True):
                if not has_ended_itself:
                    self._say(f"{child.spec.name} did not stop within {self._grace_s:g} s; killed")
                    is_clean = False
        return is_clean and not self._was_killed

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._say("stopping; once more to kill")
            self._stop.set()
            return
        self._was_killed = True
        for child in self._children:
            child.kill()

    def _child(self, spec: ChildSpec) -> Child:
        return Child(spec, lambda line: self._console.write(spec.name, line), self._say)

    def _say(self, text: str) -> None:
        self._console.write(self._name, text)
