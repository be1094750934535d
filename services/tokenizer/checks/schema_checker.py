"""Whether a value keeps a schema, by asking a process that may be lost (``schema_worker.py``)."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

_WORKER: Final = Path(__file__).with_name("schema_worker.py")
_MEMORY_BYTES: Final = 1 << 30
"""Address space of the process."""
_MAX_CHARS: Final = 4 * 1024 * 1024
"""Of a schema and a value together."""
_PATIENCE_S: Final = 3.0
"""For one check, until others are done and the process has started: an answer does not wait longer for its warnings."""
_MAX_REMEMBERED: Final = 1_024
OVER_BUDGET: Final = "that takes too long"


@dataclass(frozen=True, slots=True)
class Violation:
    """A keyword of the schema that a value breaks, and where in the value."""

    keyword: str
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found; with a ``fault``, nothing is known of the value."""

    violations: tuple[Violation, ...] = ()
    """The first ones; none: the value keeps the schema."""
    fault: str | None = None


class SchemaChecker:
    """Belongs to one event loop. Its process is started for the first check, and again where one has ended it."""

    def __init__(self, budget_s: float = 0.25) -> None:
        """``budget_s``: processor time that one check may take."""
        self._budget_s = budget_s
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._over_budget: OrderedDict[bytes, None] = OrderedDict()
        """Digests of schemas that have ended a process: once is enough."""

    async def check(self, schema: str, value: str) -> Verdict:
        """Both are JSON texts. Never raises for what they are."""
        digest = blake2b(schema.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest in self._over_budget or len(schema) + len(value) > _MAX_CHARS:
            return Verdict(fault=OVER_BUDGET)
        try:
            async with asyncio.timeout(_PATIENCE_S), self._turn:
                answer = await self._ask(json.dumps({"schema": schema, "value": value}))
        except TimeoutError:
            return Verdict(fault=OVER_BUDGET)
        if answer is None:
            self._over_budget[digest] = None
            if len(self._over_budget) > _MAX_REMEMBERED:
                self._over_budget.popitem(last=False)
            return Verdict(fault=OVER_BUDGET)
        return answer

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _ask(self, line: str) -> Verdict | None:
        """None where the process has ended over it."""
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        is_answered = False
        try:
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            answer = await process.stdout.readline()
            is_answered = answer.endswith(b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return None
        finally:
            # Whoever stopped waiting has left an answer in the pipe.
            if not is_answered:
                await self.close()
        return _read(answer) if is_answered else None

    async def _started(self) -> Process:
        if self._process is not None and self._process.returncode is not None:
            await self.close()
        if self._process is None:
            # A session of its own: what a terminal sends to the service does not reach it. It ends with its input.
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", str(_WORKER), str(self._budget_s), str(_MEMORY_BYTES)),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=True,
            )
        return self._process


def _read(line: bytes) -> Verdict:
    answer = json.loads(line)
    if "fault" in answer:
        return Verdict(fault=answer["fault"])
    return Verdict(tuple(Violation(keyword, tuple(path)) for keyword, path in answer["violations"]))
