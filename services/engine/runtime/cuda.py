"""What CUDA adds to the interfaces of this folder; nothing else here knows more of it than a device's name.

Hardly any of it can run without a GPU, so it only hands on; `make device-check` runs it where there is one.
"""

import importlib
import importlib.util
import logging
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from services.engine.runtime.layout import StateLayout
from services.engine.runtime.varlen import VarlenKernel, VarlenRows

_FLASH_2_BLOCK_TOKENS = 256
"""flash_attn refuses blocks that are no multiple of this."""
_MAX_HEAD_DIM = 256
_log = logging.getLogger(__name__)


class CudaMark:
    """An event of a stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._event = torch.cuda.Event()
        # torch makes the event at its first use, which two threads must not both be at.
        self.record()

    def record(self) -> None:
        self._event.record(self._stream)

    def wait(self) -> None:
        self._event.synchronize()

    def hold_compute(self) -> None:
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)


class CudaLane:
    """A side stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def opened(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def new_mark(self) -> CudaMark:
        return CudaMark(self._stream)

    def new_buffer(self, num_bytes: int) -> torch.Tensor:
        # Else the first device is set up too, on which somebody else may be.
        with torch.cuda.device(self._stream.device):
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def settle_compute(self) -> None:
        torch.cuda.current_stream(self._stream.device).synchronize()


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """The device's memory: all of it, and what nobody has taken. What torch keeps for later counts as taken."""
    free, total = torch.cuda.mem_get_info(device)
    return total, free


def find_varlen_kernel(device: torch.device, layout: StateLayout, block_tokens: int) -> VarlenKernel | None:
    """A kernel that attends a whole step by block tables, of those that are installed; None where none can.

    FlashAttention 3 (package flash_attn_interface, Hopper) takes blocks of any size and goes through torch's varlen
    attention, which it replaces in this process; FlashAttention 2 (package flash_attn) takes blocks of 256 tokens.
    """
    dims = {channel.head_dim for channel in layout.channels}
    if layout.dtype not in ("float16", "bfloat16") or len(dims) != 1 or any(d % 8 or d > _MAX_HEAD_DIM for d in dims):
        return None
    major, _ = torch.cuda.get_device_capability(device)
    if major == 9 and importlib.util.find_spec("flash_attn_interface"):
        from torch.nn.attention import activate_flash_attention_impl

        activate_flash_attention_impl("FA3")
        return flash_3
    if major >= 8 and importlib.util.find_spec("flash_attn"):
        if block_tokens % _FLASH_2_BLOCK_TOKENS == 0:
            return _flash_2(cast(Any, importlib.import_module("flash_attn")).flash_attn_varlen_func)
        _log.warning("flash_attn takes blocks of 256 tokens: --block-tokens 256 would use it")
    return None


def flash_3(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, rows: VarlenRows, scale: float
) -> torch.Tensor:
    """Torch's varlen attention with a block table, which FlashAttention 3 alone computes."""
    from torch.nn.attention.varlen import varlen_attn

    attended = varlen_attn(
        query,
        key_pages,
        value_pages,
        rows.query_ends,
        None,
        rows.max_query,
        rows.max_keys,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=True,
        seqused_k=rows.num_keys,
        block_table=rows.block_table,
    )
    return cast(torch.Tensor, attended)


def _flash_2(flash_attn_varlen_func: Any) -> VarlenKernel:
    def attend(
        query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, rows: VarlenRows, scale: float
    ) -> torch.Tensor:
        return flash_attn_varlen_func(
            query,
            key_pages,
            value_pages,
            rows.query_ends,
            rows.key_ends,
            rows.max_query,
            rows.max_keys,
            softmax_scale=scale,
            causal=True,
            block_table=rows.block_table,
        )

    return attend
