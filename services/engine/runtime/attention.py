"""Attention over paged state, behind transformers' AttentionInterface.

Models are loaded with ATTENTION_NAME; each of their layers then calls `paged_attention`, which
hands the layer's packed projections to the step object that travels through the model's keyword
arguments. Three implementations answer the same question: `run_attention` reads runs of the pools in
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
from services.engine.runtime.plan import StepPlan
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
