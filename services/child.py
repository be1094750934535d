"""One supervised process: started, watched until it is healthy, restarted when it dies, stopped on demand.

    start → healthy → (dies → back-off → start)* → stop

A process that dies three times before it was ever healthy, or that says so with the exit status of a settings error,
is not restarted: its ``run`` raises, and the supervisor stops the others.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

SETTINGS_STATUS: Final = 2
"""Exit status by which a service says that its settings cannot be used."""

_LAST_LINES: Final = 10
_LINE_BYTES: Final = 64 * 1024

# Linux only: the kernel sends the child SIGTERM when its parent dies, however it dies; exec keeps that setting. A
# program of its own, because code between fork and exec is not safe in a process that has threads.
_LEASH: Final = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 15)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(143)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ChildError(Exception):
    """A child that restarting cannot help; the message names it."""


class SettingsRefusedError(ChildError):
    """The child ended with ``SETTINGS_STATUS`` before it was healthy."""


class NeverHealthyError(ChildError):
    """The child died again and again before it was ever healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a child is given, in seconds, and how often."""

    first_delay_s: float = 0.5
    """Before the first restart; doubled by each further one."""
    longest_delay_s: float = 30.0
    steady_after_s: float = 60.0
    """Healthy for so long, a child has earned the first delay again."""
    probe_interval_s: float = 0.2
    start_attempts: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """What to run; equal at every restart."""

    name: str
    command: tuple[str, ...]
    """The program's absolute path, then its arguments."""
    is_healthy: Callable[[], Awaitable[bool]]
    """Asked until it says yes; it bounds its own waiting and does not raise."""
    inherited_fds: tuple[int, ...] = ()
    """Descriptors that stay open in the child; they remain the caller's."""
    patience: Patience = field(default_factory=Patience)


class Child:
    """Owns the process of one ``ChildSpec``; all methods belong to the event loop's thread."""

    def __init__(self, spec: ChildSpec, write_line: Callable[[str], None], announce: Callable[[str], None]) -> None:
        """``write_line`` gets the child's output line by line, ``announce`` what happens to the child."""
        self.spec = spec
        self.is_healthy = False
        """Whether the running process has answered its probe."""
        self._was_healthy = False
        self._write_line = write_line
        self._announce = announce
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._is_stopping = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> None:
        """Keep the process running until ``stop`` or ``kill``.

        Raises SettingsRefusedError or NeverHealthyError, and OSError when no process can be created.
        """
        try:
            await self._keep_running()
        finally:
            self._has_ended.set()

    async def stop(self, grace_s: float) -> bool:
        """Ask the process to end, and kill it after ``grace_s`` seconds; whether it ended by itself.

        Returns when the process is gone and ``run`` is over.
        """
        self._is_stopping.set()
        self._send(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._has_ended.wait(), grace_s)
        except TimeoutError:
            self.kill()
            await self._has_ended.wait()
            return False
        return True

    def kill(self) -> None:
        """End the process and its own children at once, for good."""
        self._is_stopping.set()
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _keep_running(self) -> None:
        patience, name = self.spec.patience, self.spec.name
        delay_s, failures = patience.first_delay_s, 0
        while not self._is_stopping.is_set():
            status, healthy_s = await self._run_once()
            if self._is_stopping.is_set():
                return
            how = describe_status(status)
            if not self._was_healthy:
                failures += 1
                if status == SETTINGS_STATUS:
                    reason = self._last_lines[-1] if self._last_lines else f"exited with {how}"
                    raise SettingsRefusedError(f"{name}: {reason}")
                if failures >= patience.start_attempts:
                    lines = "".join(f"\n  {line}" for line in self._last_lines)
                    raise NeverHealthyError(f"{name} exited with {how}, {failures} times before it was healthy{lines}")
            if healthy_s >= patience.steady_after_s:
                delay_s = patience.first_delay_s
            self._announce(f"{name} exited with {how}; restarting in {delay_s:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), delay_s)
            delay_s = min(delay_s * 2, patience.longest_delay_s)

    async def _run_once(self) -> tuple[int, float]:
        """One process from start to end: its exit status, and for how many seconds it was healthy."""
        leash = (sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())) if sys.platform == "linux" else ()
        # A pipe of our own: asyncio's would let wait() last until grandchildren, too, have closed it.
        read_fd, write_fd = os.pipe()
        with io.FileIO(read_fd) as pipe:
            try:
                process = self._process = await asyncio.create_subprocess_exec(
                    *leash,
                    *self.spec.command,
                    stdin=DEVNULL,
                    stdout=write_fd,
                    stderr=STDOUT,
                    # Ctrl-C reaches a terminal's whole process group, and only the supervisor may act on it.
                    start_new_session=True,
                    pass_fds=self.spec.inherited_fds,
                )
            finally:
                os.close(write_fd)
            if self._is_stopping.is_set():
                self._send(signal.SIGTERM)
            return await self._watch(process, pipe)

    async def _watch(self, process: Process, pipe: io.FileIO) -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        pump = asyncio.create_task(self._pump(reader))
        watch = asyncio.create_task(self._watch_health())
        try:
            status = await process.wait()
            ended_at = loop.time()
            # What the process left in the pipe; a grandchild may hold the pipe open for ever.
            await asyncio.wait([pump], timeout=1.0)
        finally:
            self.is_healthy = False
            pump.cancel()
            watch.cancel()
            transport.close()
            results = await asyncio.gather(pump, watch, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        healthy_at = results[1]
        return status, ended_at - healthy_at if isinstance(healthy_at, float) else 0.0

    async def _watch_health(self) -> float:
        """Probe until healthy; the loop's time at that moment."""
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        while True:
            if await self.spec.is_healthy():
                break
            await asyncio.sleep(self.spec.patience.probe_interval_s)
        healthy_at = loop.time()
        self.is_healthy = True
        if self._was_healthy:
            self._announce(f"{self.spec.name} is healthy again after {healthy_at - started_at:.1f} s")
        self._was_healthy = True
        return healthy_at

    async def _pump(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while block := await reader.read(_LINE_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._take(line)
            if len(rest) >= _LINE_BYTES:
                self._take(rest)
                rest = b""
        if rest:
            self._take(rest)

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self._last_lines.append(text)
        self._write_line(text)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def describe_status(status: int) -> str:
    """``SIGKILL`` or ``status 1``, from a return code as subprocess gives it."""
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
