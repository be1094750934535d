"""Log-probabilities of sampled tokens and their likeliest alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from services.engine.request import TokenLogprobs


def logprobs_of(
    logits: torch.Tensor, chosen: Sequence[int], count_by_row: Mapping[int, int]
) -> dict[int, TokenLogprobs]:
    """Of the asked-for rows of ``logits`` [rows, vocabulary], with so many alternatives each.

    They describe the model's own distribution: ``logits`` are those before bias, penalties, temperature and
    truncation, so a token that only a bias brought up is reported as unlikely as the model found it.
    """
    rows = list(count_by_row)
    values = torch.log_softmax(logits[rows].float(), dim=-1)
    ids = torch.tensor([[chosen[row]] for row in rows], device=values.device)
    sampled = _listed(values.gather(-1, ids)[:, 0])
    top = torch.topk(values, min(max(count_by_row.values()), values.shape[-1]), dim=-1)
    top_ids, top_values = _listed(top.indices), _listed(top.values)
    return {
        row: TokenLogprobs(
            sampled[place],
            tuple(zip(top_ids[place][: count_by_row[row]], top_values[place][: count_by_row[row]], strict=True)),
        )
        for place, row in enumerate(rows)
    }


def _listed(tensor: torch.Tensor) -> list[Any]:
    return cast("list[Any]", cast(Any, tensor).tolist())
