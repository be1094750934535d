"""What runs on a CUDA device, on CPU tensors: attention by gathering and by block tables, copies through a lane."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from services.engine.runtime import Batch, PagedRuntime, Row, load_model
from services.engine.runtime.backend import Backend, gathered, varlen
from services.engine.runtime.copies import HostCopies, Pools, StagedCopies
from services.engine.runtime.cuda import flash_3
from services.engine.runtime.fused import FusedDecoder
from services.engine.runtime.gate import LayerGate, LayersMissing
from services.engine.runtime.varlen import attend_varlen, varlen_rows
from tests.unit.engine.runtime.scenarios import SCENARIOS
from tests.unit.engine.runtime.subject import BLOCK_TOKENS, Subject
from tests.unit.engine.runtime.tiny_models import save_tiny
from tests.unit.engine.runtime.twins import HostLane, varlen_twin


def _staged(pools: Pools) -> StagedCopies:
    return StagedCopies(pools, HostLane())


_BACKENDS = (
    Backend("gathered", gathered, _staged),
    Backend("varlen", varlen(varlen_twin, BLOCK_TOKENS), _staged),
)


@pytest.fixture(scope="module")
def unfused_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that transformers' own layers compute, as off CPU: the fused decoder does not cover its activation."""
    model_dir = tmp_path_factory.mktemp("unfused")
    save_tiny("qwen3", model_dir, hidden_act="gelu")
    return model_dir


@pytest.fixture(scope="module", params=_BACKENDS, ids=lambda backend: backend.name)
def subject(request: pytest.FixtureRequest, unfused_dir: Path) -> Subject:
    subject = Subject.load(unfused_dir, num_blocks=40, tolerance=2e-4, backend=request.param)
    assert not isinstance(subject.runtime._model.network, FusedDecoder)
    return subject


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_logits_equal_a_plain_forward(subject: Subject, scenario: Callable[[Subject], None]) -> None:
    subject.reset()
    scenario(subject)


_LAYERS, _HEADS, _SLOTS, _DIM = 2, 3, 40, 4


def _pools() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shape = (_HEADS, _SLOTS, _DIM)
    return [(torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)) for _ in range(_LAYERS)]


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.booleans(),
            st.integers(0, _LAYERS - 1),
            st.integers(0, 1),
            st.lists(st.integers(0, _SLOTS), min_size=2, max_size=6, unique=True).map(sorted),
        ),
        max_size=12,
    ),
    seed=st.integers(0, 2**16),
)
def test_staged_copies_do_what_host_copies_do(moves: list[tuple[bool, int, int, list[int]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools, twins = _pools(), _pools()
    staged, host = StagedCopies(pools, HostLane()), HostCopies(twins)
    for is_write, layer, channel, edges in moves:
        runs = list(zip(edges[::2], edges[1::2], strict=False))
        if is_write:
            count = sum(stop - first for first, stop in runs)
            rows = rng.integers(0, 256, (_HEADS, count + 2, 4 * _DIM)).astype(np.uint8)[:, 1:-1]
            staged.write(layer, channel, runs, rows)
            host.write(layer, channel, runs, rows)
        else:
            assert staged.read(layer, channel, runs) == host.read(layer, channel, runs)
    for pool, twin in zip((p for layer in pools for p in layer), (p for layer in twins for p in layer), strict=True):
        assert torch.equal(pool.view(torch.uint8), twin.view(torch.uint8))


def test_a_layer_is_held_for_its_last_write_alone() -> None:
    lane = HostLane()
    copies = StagedCopies(_pools(), lane)
    first, second = lane.marks[:_LAYERS]
    rows = np.zeros((_HEADS, 2, 4 * _DIM), dtype=np.uint8)
    copies.write(1, 0, [(3, 5)], rows)
    copies.write(1, 1, [(3, 5)], rows)
    assert (first.at, second.at) == (0, lane.num_records)
    copies.await_layer(1)
    assert (first.num_holds, second.num_holds) == (0, 1)
    copies.settle()
    assert lane.num_settles == 1


def test_a_buffer_is_taken_again_only_when_its_last_copy_is_done() -> None:
    lane = HostLane()
    copies = StagedCopies(_pools(), lane)
    buffer_marks = lane.marks[_LAYERS:]
    rows = np.zeros((_HEADS, 2, 4 * _DIM), dtype=np.uint8)
    for turn in range(1, 3):
        for _ in buffer_marks:
            copies.write(0, 0, [(0, 2)], rows)
        assert {mark.num_waits for mark in buffer_marks} == {turn}
    assert len(lane.buffers) == len(buffer_marks)
    # A larger copy takes a larger buffer, and it alone.
    copies.write(0, 0, [(0, 3)], np.zeros((_HEADS, 3, 4 * _DIM), dtype=np.uint8))
    assert len(lane.buffers) == len(buffer_marks) + 1


def test_a_step_holds_each_layer_and_settles_even_when_a_layer_does_not_come(unfused_dir: Path) -> None:
    lane = HostLane()
    backend = Backend("gathered", gathered, lambda pools: StagedCopies(pools, lane))
    runtime = PagedRuntime(load_model(unfused_dir), num_blocks=4, block_tokens=16, backend=backend)
    layers, num_settles = lane.marks[: runtime.layout.num_layers], lane.num_settles
    row = Row(np.arange(3, 8, dtype=np.int32), 0, [0], 1)
    runtime.forward(Batch((row,)))
    assert [mark.num_holds for mark in layers] == [1, 1]
    assert lane.num_settles == num_settles + 1
    gate = LayerGate()
    gate.open(1)
    gate.fail()
    with pytest.raises(LayersMissing):
        runtime.forward(Batch((row,), gate))
    assert [mark.num_holds for mark in layers] == [2, 1]
    assert lane.num_settles == num_settles + 2


def test_torch_takes_what_flash_attention_3_is_given() -> None:
    """By its shapes alone, which is all that there is to try without a GPU."""
    rows = (Row(np.zeros(3, np.int32), 5, [1, 0], 1), Row(np.zeros(1, np.int32), 0, [2], 1))
    tables = varlen_rows(Batch(rows), 16, torch.device("cpu"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        query, pools = torch.empty(1, 6, 4, 64), torch.empty(2, 2, 48, 64)
        attended = attend_varlen(query, pools[0], pools[1], tables, flash_3, 16, 0.125)
    assert attended.shape == (1, 4, 6, 64)


@pytest.mark.parametrize(
    ("weights", "dtype"), [("auto", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_off_cpu_weights_decide_what_is_computed_in(tmp_path: Path, weights: str, dtype: torch.dtype) -> None:
    save_tiny("llama", tmp_path, dtype=torch.bfloat16)
    # A device on which nothing is computed, so that any machine has it.
    model = load_model(tmp_path, "meta", weights=weights)
    assert (model.dtype, model.weight_format) == (dtype, str(dtype).removeprefix("torch."))
    assert not isinstance(model.network, FusedDecoder)
