"""Attention over runs of the pools in place: CPU only.

Token-major, as layers compute: T packed tokens' query is [T, heads, dim], their key and value [T, kv_heads, dim]; pools
are [kv_heads, slots, dim]. All of it can be compiled with torch.jit.script.
"""

import torch

from services.engine.runtime.plan import RowPlan
from services.engine.runtime.zen import ZenKernel, find_zen


class FlashKernel(torch.nn.Module):
    """torch's own."""

    name = "torch"

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query [batch, heads, queries, dim] over key and value [batch, heads, n, dim]; as query, and log-sum-exps.

        Unlike scaled_dot_product_attention it takes views of runs as they are, and its log-sum-exps [batch, heads,
        queries] make partial results mergeable.
        """
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
        )


class RunAttention(torch.nn.Module):
    """Attends each row to its long runs in place, to a copy of the short ones, and to its own tokens causally.

    The query heads of one key head are folded into the query axis, so that they share one pass over the keys. Partial
    results merge by log-sum-exp.
    """

    def __init__(self, num_groups: int, kernel: FlashKernel | ZenKernel | None = None) -> None:
        """num_groups: key heads. kernel: None takes the fastest that can be used here."""
        super().__init__()
        self.kernel = kernel or find_zen() or FlashKernel()
        # A single token's heads that share a pass over the keys share a thread, so with torch's kernel they are
        # attended one by one where the key heads cannot be dealt out evenly.
        self.spreads_heads = isinstance(self.kernel, FlashKernel) and num_groups % torch.get_num_threads() != 0

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        rows: list[RowPlan],
        scale: float,
    ) -> torch.Tensor:
        """[T, heads * dim]. The pools must already hold the state of single-token rows."""
        _, num_heads, dim = query.shape
        num_groups = key.shape[1]
        group = num_heads // num_groups
        outputs: list[torch.Tensor] = []
        for first, num_tokens, context, scattered in rows:
            own_query = query.narrow(0, first, num_tokens).transpose(0, 1)
            folded = own_query.reshape(1, num_groups, group * num_tokens, dim)
            repeats = group if self.spreads_heads and num_tokens == 1 else 0
            if repeats > 0:
                folded = folded.view(num_groups, group, 1, dim)
            merged: tuple[torch.Tensor, torch.Tensor] | None = None
            for run_first, run_stop in context:
                keys = _for_heads(key_pool.narrow(1, run_first, run_stop - run_first), repeats)
                values = _for_heads(value_pool.narrow(1, run_first, run_stop - run_first), repeats)
                merged = _merge(merged, self.kernel(folded, keys, values, False, scale))
            if scattered is not None:
                keys = _for_heads(key_pool.index_select(1, scattered), repeats)
                values = _for_heads(value_pool.index_select(1, scattered), repeats)
                merged = _merge(merged, self.kernel(folded, keys, values, False, scale))
            if num_tokens > 1:
                own_key = key.narrow(0, first, num_tokens).transpose(0, 1)
                own_value = value.narrow(0, first, num_tokens).transpose(0, 1)
                own_query = folded.view(num_groups, group, num_tokens, dim)
                output, weight = self._attend_causally(own_query, own_key, own_value, scale)
                own = (output.reshape(folded.shape), weight.reshape(1, num_groups, group * num_tokens))
                merged = _merge(merged, own)
            assert merged is not None, "a row sees at least its own token"
            by_token = merged[0].view(num_heads, num_tokens, dim).transpose(0, 1)
            outputs.append(by_token.reshape(num_tokens, num_heads * dim))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend_causally(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The output and log-sum-exp of query [groups, group, n, dim] over key and value [groups, n, dim].

        In pieces: of a causal square the kernel computes more than the half that counts, of a rectangle no more.
        """
        num_groups, group, num_tokens, dim = query.shape
        outputs: list[torch.Tensor] = []
        weights: list[torch.Tensor] = []
        for first in range(0, num_tokens, 256):
            count = min(256, num_tokens - first)
            piece = query.narrow(2, first, count)
            keys = _for_heads(key.narrow(1, first, count), group)
            values = _for_heads(value.narrow(1, first, count), group)
            part = self.kernel(piece, keys, values, True, scale)
            if first > 0:
                folded = piece.reshape(1, num_groups, group * count, dim)
                keys, values = _for_heads(key.narrow(1, 0, first), 0), _for_heads(value.narrow(1, 0, first), 0)
                output, weight = self.kernel(folded, keys, values, False, scale)
                part = _merge(part, (output.reshape(piece.shape), weight.reshape(num_groups, group, count)))
            outputs.append(part[0])
            weights.append(part[1])
        if len(outputs) == 1:
            return outputs[0], weights[0]
        return torch.cat(outputs, 2), torch.cat(weights, 2)


def _for_heads(state: torch.Tensor, repeats: int) -> torch.Tensor:
    """Keys or values [groups, n, dim] beside queries: [1, groups, n, dim] where those are folded.

    With repeats, beside queries [groups, repeats, queries, dim]: a stride of zero repeats each key head without a copy.
    """
    return state.unsqueeze(1).expand(-1, repeats, -1, -1) if repeats > 0 else state.unsqueeze(0)


def _merge(
    merged: tuple[torch.Tensor, torch.Tensor] | None, part: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine two partial softmaxes, given as (output, log-sum-exp).

    Invariant: each part covers at least one key, so log-sum-exps are finite and their
    difference is never inf − inf. Only the difference is exponentiated: no overflow.
    """
    if merged is None:
        return part
    output, total = merged
    other, weight = part
    share = torch.sigmoid(weight - total).unsqueeze(-1)
    return torch.lerp(output, other, share), torch.logaddexp(total, weight)
