"""Compiles the fences of requests, off the step loop and one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.engine.errors import InvalidRequest
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.errors import FenceError
from services.engine.fence.program import Program
from services.engine.fence.token_rows import TokenRows
from services.engine.fence.tokens import FenceTokens
from services.engine.thinking import ThinkingMarks
from services.vocabulary import Vocabulary


class Fencing:
    """Of one model. Its tables are built in the background, which `built` waits for."""

    def __init__(self, vocabulary: Vocabulary, model_dir: Path, end_ids: Iterable[int], num_ids: int) -> None:
        """``num_ids``: width of the model's logits."""
        self._vocabulary = vocabulary
        self._model_dir = model_dir
        self._end_ids = frozenset(end_ids)
        self._num_ids = num_ids
        self._thread = ThreadPoolExecutor(1, "fence")
        self._building = self._thread.submit(self._build)

    async def built(self) -> None:
        """Returns when there are tables, or when it is known that there are none: then requests with fences fail."""
        await asyncio.gather(asyncio.wrap_future(self._building), return_exceptions=True)

    async def compile(self, program: Program, thinking: ThinkingMarks | None) -> CompiledFence:
        """Raises InvalidRequest where this model's tokens cannot keep it, or it cannot be meant."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._compile, program, thinking)

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _build(self) -> FenceCompiler:
        tokenizer_json = (self._model_dir / "tokenizer.json").read_text(encoding="utf-8")
        return FenceCompiler(TokenRows(FenceTokens(self._vocabulary, tokenizer_json, self._end_ids, self._num_ids)))

    def _compile(self, program: Program, thinking: ThinkingMarks | None) -> CompiledFence:
        start_id, end_id = (None, None) if thinking is None else (thinking.start_id, thinking.end_id)
        try:
            return self._building.result().compile(program, end_id, start_id)
        except FenceError as error:
            raise InvalidRequest("fence", str(error)) from None
