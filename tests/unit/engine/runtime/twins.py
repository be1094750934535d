"""CPU twins of what a CUDA device does: a lane whose copies are done at once, and a varlen kernel in plain torch."""

from contextlib import AbstractContextManager, nullcontext

import torch

from services.engine.runtime.varlen import VarlenRows


class HostMark:
    """Counts what is asked of it; ``at`` is the lane's number of records when it was recorded last."""

    def __init__(self, lane: "HostLane") -> None:
        self._lane = lane
        self.at = 0
        self.num_holds = 0
        self.num_waits = 0

    def record(self) -> None:
        self._lane.num_records += 1
        self.at = self._lane.num_records

    def wait(self) -> None:
        self.num_waits += 1

    def hold_compute(self) -> None:
        self.num_holds += 1


class HostLane:
    """Copies in host memory, in order by nature."""

    def __init__(self) -> None:
        self.marks: list[HostMark] = []
        self.buffers: list[torch.Tensor] = []
        self.num_records = 0
        self.num_settles = 0

    def opened(self) -> AbstractContextManager[object]:
        return nullcontext()

    def new_mark(self) -> HostMark:
        self.marks.append(HostMark(self))
        return self.marks[-1]

    def new_buffer(self, num_bytes: int) -> torch.Tensor:
        self.buffers.append(torch.full((num_bytes,), 0xAA, dtype=torch.uint8))
        return self.buffers[-1]

    def settle_compute(self) -> None:
        self.num_settles += 1


def varlen_twin(
    query: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, rows: VarlenRows, scale: float
) -> torch.Tensor:
    """Every product and sum written out, by what the tensors of ``rows`` say and nothing else."""
    output = torch.empty_like(query)
    query_ends, key_ends = rows.query_ends.tolist(), rows.key_ends.tolist()
    group = query.shape[1] // key_pages.shape[2]
    for place, num_keys in enumerate(rows.num_keys.tolist()):
        first, last = query_ends[place], query_ends[place + 1]
        assert key_ends[place + 1] - key_ends[place] == num_keys <= rows.max_keys
        assert 0 < last - first <= min(rows.max_query, num_keys)
        pages = rows.block_table[place].long()
        keys, values = (
            pool[pages].flatten(0, 1)[:num_keys].repeat_interleave(group, dim=1) for pool in (key_pages, value_pages)
        )
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) * scale
        seen = torch.ones(last - first, num_keys, dtype=torch.bool).tril(num_keys - (last - first))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        output[first:last] = torch.einsum("hqk,khd->qhd", weights, values)
    return output
