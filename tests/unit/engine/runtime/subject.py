"""A runtime under test beside the plain transformers forward that judges it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from services.engine.runtime import Batch, PagedRuntime, Row, load_model
from services.engine.runtime.backend import Backend
from services.engine.runtime.gate import LayerGate

Tokens = npt.NDArray[np.int32]

BLOCK_TOKENS = 16


@dataclass
class Subject:
    """One model, loaded twice, in fp16 with the same rounded matrices. `tolerance` bounds |Δlogit|."""

    runtime: PagedRuntime
    oracle: Any
    tolerance: float
    block_tokens: int = BLOCK_TOKENS
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    next_block: int = 0

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        num_blocks: int,
        tolerance: float,
        weights: str = "fp32",
        device: torch.device | None = None,
        block_tokens: int = BLOCK_TOKENS,
        backend: Backend | None = None,
    ) -> "Subject":
        """The oracle is on the CPU, wherever the runtime is."""
        model = load_model(model_dir, device or "cpu", weights=weights)
        runtime = PagedRuntime(model, num_blocks=num_blocks, block_tokens=block_tokens, backend=backend)
        oracle = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        if weights == "fp16":
            oracle.requires_grad_(False)
            for matrix in (parameter for parameter in oracle.parameters() if parameter.dim() > 1):
                matrix.copy_(matrix.to(torch.float16))
        return cls(runtime, oracle, tolerance, block_tokens)

    def reset(self) -> None:
        """Start over on pools full of NaN: whatever reads an unwritten slot shows it."""
        self.rng = np.random.default_rng(7)
        self.next_block = 0
        for layer in self.runtime._pools:
            for pool in layer:
                pool.fill_(float("nan"))

    def tokens(self, num_tokens: int) -> Tokens:
        return self.rng.integers(3, self.runtime.vocab_size, num_tokens).astype(np.int32)

    def blocks(self, num_tokens: int) -> list[int]:
        """Fresh consecutive blocks for num_tokens tokens."""
        first = self.next_block
        self.next_block += -(-num_tokens // self.block_tokens)
        assert self.next_block <= self.runtime.num_blocks
        return list(range(first, self.next_block))

    def prefill(self, token_ids: Tokens, block_ids: list[int], start: int = 0) -> torch.Tensor:
        """Compute token_ids in one row; the last token's logits."""
        return self.runtime.forward(Batch((Row(token_ids, start, block_ids, 1),)))[0]

    def expected(self, token_ids: Tokens) -> torch.Tensor:
        with torch.no_grad():
            ids = torch.as_tensor(token_ids.astype(np.int64)).unsqueeze(0)
            return self.oracle(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, 0]

    def check(self, logits: torch.Tensor, token_ids: Tokens) -> None:
        """Judge the logits after token_ids."""
        expected = self.expected(token_ids)
        assert logits.shape == expected.shape
        difference = (logits.cpu() - expected).abs().max().item()
        assert difference <= self.tolerance, difference

    def state(self, block_ids: list[int], num_tokens: int) -> list[bytes]:
        """Every span of a sequence."""
        layout = self.runtime.layout
        return [
            self.runtime.read_span(block_ids, 0, num_tokens, layer, channel)
            for layer in range(layout.num_layers)
            for channel in range(len(layout.channels))
        ]

    def restore(self, block_ids: list[int], num_tokens: int, state: list[bytes], gate: LayerGate | None = None) -> None:
        """Put back what ``state`` gave; opens the gate layer by layer."""
        spans = iter(state)
        for layer in range(self.runtime.layout.num_layers):
            for channel in range(len(self.runtime.layout.channels)):
                self.runtime.write_span(block_ids, 0, num_tokens, layer, channel, next(spans))
            if gate is not None:
                gate.open(layer + 1)
