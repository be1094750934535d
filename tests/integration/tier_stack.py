"""A store and an engine that a test can restart and evict, and a naive model of what they should have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import takewhile
from pathlib import Path

from fencepost.engine.v1 import engine_pb2 as pb

from tests.contract.engine_client import Answer, EngineClient, run_engine, run_kvstore

POOL_TOKENS = 4096
MIN_RESTORE_TOKENS = 32


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two prompts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def longest_hit(states: Sequence[Sequence[int]], prompt: Sequence[int]) -> int:
    """Tokens that who has these states need not compute, in memory or on disk; at least one must be computed."""
    return max((common(state, prompt[:-1]) for state in states), default=0)


class TierStack:
    """Both services, the terminal states that either has, and a check of where each turn's tokens came from."""

    def __init__(self, model: Path, data_dir: Path) -> None:
        self.engine: EngineClient
        self.address: str
        self._model = model
        self._data_dir = data_dir
        self._store_stack = AsyncExitStack()
        self._engine_stack = AsyncExitStack()
        self._block_tokens = 16
        self._resident: list[list[int]] = []
        self._is_resident_known = True
        self._stored: list[list[int]] = []
        self._num_fillers = 0

    async def __aenter__(self) -> TierStack:
        self.address = await self._store_stack.enter_async_context(run_kvstore(self._data_dir))
        await self.restart_engine(self._block_tokens)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._engine_stack.aclose()
        await self._store_stack.aclose()

    async def restart_engine(self, block_tokens: int) -> None:
        """Another engine, with its own size of block, on the same store."""
        await self._engine_stack.aclose()
        self._block_tokens = block_tokens
        self._resident, self._is_resident_known = [], True
        self.engine = await self._engine_stack.enter_async_context(
            run_engine(self._model, self.address, block_tokens=block_tokens, vram_bytes=POOL_TOKENS * 512)
        )

    async def restart_all(self, block_tokens: int) -> None:
        """Stop everything; only the data directory is left."""
        await self._engine_stack.aclose()
        await self._store_stack.aclose()
        self.address = await self._store_stack.enter_async_context(run_kvstore(self._data_dir))
        await self.restart_engine(block_tokens)

    async def evict(self) -> None:
        """Let other prompts take the engine's memory, all but a block or two of it."""
        for _ in range(2):
            self._num_fillers += 1
            filler = [3 + self._num_fillers] * 2040
            await self.engine.generate(filler, 1, scope=f"filler {self._num_fillers}", persist=False)
        self._is_resident_known = False

    async def turn(self, prompt: list[int], max_tokens: int) -> Answer:
        """Answer and check the usage: every token of the prompt is accounted for, and by the tier that had it."""
        answer = await self.engine.generate(prompt, max_tokens)
        load = await self.engine.settled()
        assert load.held_blocks == 0
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        self._check_use(prompt, answer)
        state = [*prompt, *answer.ids[:-1]]
        self._resident.append(state)
        if len(state) >= MIN_RESTORE_TOKENS:
            self._stored.append(state)
        return answer

    def _check_use(self, prompt: list[int], answer: Answer) -> None:
        use = answer.usage.cached
        vram, ssd = answer.cached(pb.TIER_VRAM), answer.cached(pb.TIER_SSD)
        assert answer.usage.prompt_tokens == answer.admitted.prompt_tokens == len(prompt)
        assert answer.cached() == vram + ssd
        assert vram + ssd + use.recomputed_tokens == len(prompt)
        assert use.recomputed_tokens >= 1
        assert answer.admitted.cached.by_tier == use.by_tier

        resident, stored = longest_hit(self._resident, prompt), longest_hit(self._stored, prompt)
        size = self._block_tokens
        # More states than fit: some of it has gone.
        held = sum(-(-len(state) // size) * size for state in self._resident)
        if self._is_resident_known and held + len(prompt) + 2 * size <= POOL_TOKENS:
            is_restored = stored - resident >= MIN_RESTORE_TOKENS
            whole_blocks = resident // size * size
            assert (vram, ssd) == ((whole_blocks, stored - whole_blocks) if is_restored else (resident, 0))
        elif ssd:
            assert vram + ssd == stored
            assert vram % size == 0
        else:
            assert vram <= resident
            assert stored - vram < MIN_RESTORE_TOKENS
