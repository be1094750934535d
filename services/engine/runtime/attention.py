"""Attention over paged state, behind transformers' AttentionInterface.

Models are loaded with ATTENTION_NAME; each of their layers then calls `paged_attention`, which
hands the layer's packed projections to the step object that travels through the model's keyword
arguments. Three implementations answer the same question: `attend_runs` reads runs of the pools in
place (CPU), `attend_gathered` copies the context together (any device, and the tests' oracle), and
`varlen.attend_varlen` leaves it to a kernel that reads block tables; `backend` says which is whose.

Shapes in transformers' layers: query [1, heads, T, dim], key and value [1, kv_heads, T, dim] are the
step's own T packed tokens; pools are [kv_heads, slots, dim]; results are [1, T, heads, dim].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from services.engine.runtime.errors import UnsupportedModelError
from services.engine.runtime.plan import RowPlan, StepPlan
from services.engine.runtime.runs import slots_of

ATTENTION_NAME = "fencepost_paged"


class AttentionStep(Protocol):
    """What a forward carries for its layers."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Store this layer's new state and return the attention output, [1, T, heads, dim]."""
        ...


class AttentionLayer(Protocol):
    """The part of a transformers attention module that is used here."""

    layer_idx: int


class _Registry(Protocol):
    def register(self, key: str, value: Callable[..., object]) -> None: ...


def paged_attention(
    module: AttentionLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    step: AttentionStep,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls in each layer.

    Raises UnsupportedModelError where the layer asks for more than full causal attention:
    ignoring the request would give plausible, wrong output.
    """
    if sliding_window is not None or softcap is not None or s_aux is not None:
        raise UnsupportedModelError(f"layer {module.layer_idx} wants sliding-window, soft-capped or sink attention")
    return step.attend(module.layer_idx, query, key, value, scaling), None


cast(_Registry, AttentionInterface).register(ATTENTION_NAME, paged_attention)


def spreads_heads(num_groups: int) -> bool:
    """Whether the query heads of a single token are better attended one by one than together by key head.

    Together they share one pass over the keys, on one thread.
    """
    return num_groups % torch.get_num_threads() != 0


def attend_runs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    rows: list[RowPlan],
    spread: bool,
    scale: float,
) -> torch.Tensor:
    """Attend each row to its long runs in place, to a copy of the short ones, and to its own tokens causally; CPU only.

    Token-major, as layers compute: query is [T, heads, dim], key and value [T, kv_heads, dim], the result
    [T, heads * dim]; spread is `spreads_heads`. The query heads of one key head are folded into the query axis, so that
    they share one pass over the keys, but where spread not those of a single token. Partial results merge by
    log-sum-exp. The pools must already hold the state of single-token rows. Can be compiled with torch.jit.script.
    """
    _, num_heads, dim = query.shape
    num_groups = key.shape[1]
    group = num_heads // num_groups
    outputs: list[torch.Tensor] = []
    for first, num_tokens, context, scattered in rows:
        own_query = query.narrow(0, first, num_tokens).transpose(0, 1)
        folded = own_query.reshape(1, num_groups, group * num_tokens, dim)
        repeats = group if spread and num_tokens == 1 else 0
        if repeats > 0:
            folded = folded.view(num_groups, group, 1, dim)
        merged: tuple[torch.Tensor, torch.Tensor] | None = None
        for run_first, run_stop in context:
            keys = _for_heads(key_pool.narrow(1, run_first, run_stop - run_first), repeats)
            values = _for_heads(value_pool.narrow(1, run_first, run_stop - run_first), repeats)
            merged = _merge(merged, _flash(folded, keys, values, False, scale))
        if scattered is not None:
            keys = _for_heads(key_pool.index_select(1, scattered), repeats)
            values = _for_heads(value_pool.index_select(1, scattered), repeats)
            merged = _merge(merged, _flash(folded, keys, values, False, scale))
        if num_tokens > 1:
            own_key = key.narrow(0, first, num_tokens).transpose(0, 1)
            own_value = value.narrow(0, first, num_tokens).transpose(0, 1)
            own_query = folded.view(num_groups, group, num_tokens, dim)
            output, weight = _attend_causally(own_query, own_key, own_value, scale)
            own = (output.reshape(folded.shape), weight.reshape(1, num_groups, group * num_tokens))
            merged = _merge(merged, own)
        assert merged is not None, "a row sees at least its own token"
        by_token = merged[0].view(num_heads, num_tokens, dim).transpose(0, 1)
        outputs.append(by_token.reshape(num_tokens, num_heads * dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_causally(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
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
        part = _flash(piece, keys, values, True, scale)
        if first > 0:
            folded = piece.reshape(1, num_groups, group * count, dim)
            keys, values = _for_heads(key.narrow(1, 0, first), 0), _for_heads(value.narrow(1, 0, first), 0)
            output, weight = _flash(folded, keys, values, False, scale)
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


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    # Returns the output and each query's log-sum-exp. Unlike scaled_dot_product_attention it takes the run views as
    # they are, and the log-sum-exp is what makes partial results mergeable.
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=None, scale=scale
    )


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


@dataclass(frozen=True, slots=True)
class GatheredRow:
    """One row of `attend_gathered`.

    slots: the pool slots of all tokens the row sees, its own included.
    mask: [num_tokens, len(slots)], true where seen; None where every token sees everything.
    """

    first: int
    num_tokens: int
    slots: torch.Tensor
    mask: torch.Tensor | None


def gathered_rows(plan: StepPlan) -> tuple[GatheredRow, ...]:
    """Index tensors and masks for a step."""
    device = plan.slots.device
    rows: list[GatheredRow] = []
    for row in plan.rows:
        parts = [torch.as_tensor(slots_of(row.context), device=device)] if row.context else []
        if row.scattered is not None:
            parts.append(row.scattered)
        mask = None
        if row.num_tokens > 1:
            parts.append(plan.slots.narrow(0, row.first, row.num_tokens))
            num_seen = sum(len(part) for part in parts)
            mask = torch.ones(row.num_tokens, num_seen, dtype=torch.bool, device=device)
            mask = mask.tril(num_seen - row.num_tokens)
        rows.append(GatheredRow(row.first, row.num_tokens, torch.cat(parts), mask))
    return tuple(rows)


def attend_gathered(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    rows: Sequence[GatheredRow],
    scale: float,
) -> torch.Tensor:
    """Gather each row's keys and values, then one masked attention per row; any device.

    The pools must already hold the state of all rows.
    """
    num_groups, dim = key_pool.shape[0], query.shape[3]
    output = query.new_empty(1, query.shape[2], query.shape[1], dim)
    for row in rows:
        # Key heads take the batch axis and a stride of zero repeats them: with enable_gqa, torch has no fast kernel on
        # CUDA that takes a mask.
        own_query = query.narrow(2, row.first, row.num_tokens).view(num_groups, -1, row.num_tokens, dim)
        grouped = (num_groups, own_query.shape[1], len(row.slots), dim)
        attended = scaled_dot_product_attention(
            own_query,
            key_pool.index_select(1, row.slots).unsqueeze(1).expand(grouped),
            value_pool.index_select(1, row.slots).unsqueeze(1).expand(grouped),
            attn_mask=row.mask,
            scale=scale,
        )
        attended = attended.reshape(1, -1, row.num_tokens, dim).transpose(1, 2)
        output.narrow(1, row.first, row.num_tokens).copy_(attended)
    return output
