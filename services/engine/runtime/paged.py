"""Runtime A: paged, packed attention on transformers models, fused ones on CPU and unmodified ones elsewhere.

It owns the pools and knows nothing of who uses which block: schedulers and trees above it deal
in block ids, kvstore in the byte spans read and written here.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from services.engine.runtime.backend import Backend, LayerAttention, backend_of
from services.engine.runtime.batch import Batch
from services.engine.runtime.copies import StateCopies
from services.engine.runtime.fused import FusedDecoder
from services.engine.runtime.gate import LAYER_TIMEOUT_S, LayerGate
from services.engine.runtime.loader import LoadedModel
from services.engine.runtime.plan import StepPlan, plan_step
from services.engine.runtime.pools import allocate_pools
from services.engine.runtime.probe import probe
from services.engine.runtime.runs import Run, slot_runs


class PagedRuntime:
    """A model and the preallocated pools of its state.

    Pools are indexed [layer][channel] and head-major, [heads, num_blocks * block_tokens,
    head_dim], so that a run of consecutive blocks is a plain view.

    Threads: `forward` and `copy_rows` run on one worker thread. Spans may be read and written
    from others at the same time, as long as a block being written is nobody else's; no scratch
    is shared.
    """

    def __init__(
        self, model: LoadedModel, *, num_blocks: int, block_tokens: int, backend: Backend | None = None
    ) -> None:
        """Probe the model and allocate zeroed pools.

        backend: None takes the device's own.
        Raises UnsupportedModelError if the model's state doesn't fit this runtime.
        """
        self._model = model
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.layout, self.vocab_size = probe(model)
        self.context_tokens = model.context_tokens
        self.eos_token_ids = model.eos_token_ids
        pools_by_channel = [
            allocate_pools(
                self.layout.num_layers,
                (channel.num_heads, num_blocks * block_tokens, channel.head_dim),
                model.dtype,
                model.device,
            )
            for channel in self.layout.channels
        ]
        self._pools = list(zip(*pools_by_channel, strict=True))
        backend = backend or backend_of(model.device, self.layout, block_tokens)
        self.attention_name = backend.name
        self._attention = backend.attention
        self._copies = backend.new_copies(self._pools)
        self._copies.settle()

    @property
    def allocated_bytes(self) -> int:
        """Bytes the pools really hold: each storage once, whatever views say."""
        storages = {
            storage.data_ptr(): storage.nbytes()
            for layer in self._pools
            for storage in (pool.untyped_storage() for pool in layer)
        }
        return sum(storages.values())

    def forward(self, batch: Batch) -> torch.Tensor:
        """Compute all rows in one pass and store their state in the pools.

        Returns float32 logits [all rows' num_logits, vocab_size] in row order, owned by the
        caller. Raises ValueError, before anything is written, if a row is not as it must be, and
        LayersMissing where the batch's gate fails: then only slots of the
        rows' own tokens have been written, and the same batch can be computed again.
        When it returns or raises, the device has done all of it.
        Cost: linears over all tokens together, attention row by row.
        """
        plan = plan_step(batch, self.block_tokens, self._model.device)
        network = self._model.network
        if isinstance(network, FusedDecoder):
            return network.logits(plan, self._pools, batch.gate)
        step = _PoolStep(plan, self._attention(batch, plan), self._pools, self._copies, batch.gate)
        try:
            with torch.inference_mode():
                logits = network(
                    input_ids=plan.token_ids,
                    position_ids=plan.positions,
                    use_cache=False,
                    logits_to_keep=plan.logits_at,
                    step=step,
                ).logits
            # Outside inference mode, so that samplers may edit it in place.
            return logits[0].to(torch.float32, copy=True)
        finally:
            self._copies.settle()

    def copy_rows(self, source_block: int, target_block: int, num_tokens: int) -> None:
        """Copy the state of the first num_tokens slots of a block, in all layers and channels.

        Raises ValueError if a block or the count is out of range.
        """
        blocks = range(self.num_blocks)
        if source_block not in blocks or target_block not in blocks:
            raise ValueError(f"no such block: {source_block} or {target_block}")
        if not 0 <= num_tokens <= self.block_tokens:
            raise ValueError(f"a block has {self.block_tokens} slots, not {num_tokens}")
        source, target = source_block * self.block_tokens, target_block * self.block_tokens
        for layer, pools in enumerate(self._pools):
            self._copies.await_layer(layer)
            for pool in pools:
                pool.narrow(1, target, num_tokens).copy_(pool.narrow(1, source, num_tokens))
        self._copies.settle()

    def read_span(
        self,
        block_ids: Sequence[int],
        first_token: int,
        num_tokens: int,
        layer: int,
        channel: int,
    ) -> bytes:
        """The state at positions [first_token, first_token + num_tokens) of a block table.

        Returns C-order [heads, num_tokens, head_dim], little endian. Raises ValueError if the
        table doesn't cover the range.
        """
        runs = slot_runs(block_ids, first_token, num_tokens, self.block_tokens)
        if not runs:
            return b""
        return self._copies.read(layer, channel, runs)

    def write_span(
        self,
        block_ids: Sequence[int],
        first_token: int,
        num_tokens: int,
        layer: int,
        channel: int,
        data: bytes | memoryview,
    ) -> None:
        """Put back what `read_span` returned, into any blocks.

        Raises ValueError, before anything is written, if data has the wrong length or the table
        doesn't cover the range.
        """
        runs = slot_runs(block_ids, first_token, num_tokens, self.block_tokens)
        expected_bytes = self.layout.span_bytes(channel, num_tokens)
        num_bytes = memoryview(data).nbytes
        if num_bytes != expected_bytes:
            raise ValueError(f"a span of {num_tokens} tokens has {expected_bytes} bytes, not {num_bytes}")
        heads = self.layout.channels[channel].num_heads
        rows = np.frombuffer(data, dtype=np.uint8).reshape(heads, num_tokens, -1 if num_tokens else 0)
        self.write_rows(runs, layer, channel, rows)

    def write_rows(self, runs: Sequence[Run], layer: int, channel: int, rows: npt.NDArray[np.uint8]) -> None:
        """Put state into slots: rows are [heads, tokens, bytes of a head], as many tokens as the runs have slots."""
        self._copies.write(layer, channel, runs, rows)


class _PoolStep:
    """One step's attention over the pools; what the model's layers call back."""

    def __init__(
        self,
        plan: StepPlan,
        attention: LayerAttention,
        pools: list[tuple[torch.Tensor, ...]],
        copies: StateCopies,
        gate: LayerGate | None,
    ) -> None:
        self._slots = plan.slots
        self._attention = attention
        self._pools = pools
        self._copies = copies
        self._gate = gate

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        if self._gate is not None:
            self._gate.wait(layer, LAYER_TIMEOUT_S)
        self._copies.await_layer(layer)
        key_pool, value_pool = self._pools[layer]
        key_pool.index_copy_(1, self._slots, key[0])
        value_pool.index_copy_(1, self._slots, value[0])
        return self._attention(query, key, value, key_pool, value_pool, scale)
