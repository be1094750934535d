"""What the paged runtime promises beside its logits: layout, spans, copies, errors."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from services.engine.runtime import Batch, Channel, PagedRuntime, Row, load_model
from tests.unit.engine.runtime.subject import Subject


@pytest.fixture(scope="module")
def loaded(tiny_dirs: dict[str, Path]) -> Subject:
    return Subject.load(tiny_dirs["llama"], num_blocks=24, tolerance=1e-4)


@pytest.fixture
def subject(loaded: Subject) -> Subject:
    loaded.reset()
    return loaded


def test_layout_is_what_the_model_computes(tiny_dirs: dict[str, Path]) -> None:
    runtime = PagedRuntime(load_model(tiny_dirs["qwen3"]), num_blocks=4, block_tokens=16)
    assert runtime.layout.channels == (Channel("key", 2, 64), Channel("value", 2, 64))
    assert (runtime.layout.num_layers, runtime.layout.dtype) == (2, "float32")
    assert runtime.layout.bytes_per_token == 2 * 2 * 2 * 64 * 4
    assert runtime.layout.span_bytes(0, 5) == 2 * 5 * 64 * 4
    assert runtime.allocated_bytes == 4 * 16 * runtime.layout.bytes_per_token
    assert (runtime.vocab_size, runtime.context_tokens) == (500, 512)
    assert runtime.eos_token_ids == {2}


def test_no_wanted_logits_gives_no_rows(subject: Subject) -> None:
    logits = subject.runtime.forward(Batch((Row(subject.tokens(4), 0, [0], False),)))
    assert logits.shape == (0, subject.runtime.vocab_size)


def test_logits_belong_to_the_caller(subject: Subject) -> None:
    logits = subject.prefill(subject.tokens(4), [0])
    logits[3] = float("-inf")
    assert logits[3] == float("-inf")


def test_a_span_is_head_major_and_follows_the_table(subject: Subject) -> None:
    subject.prefill(subject.tokens(40), [5, 2, 3])
    pool = subject.runtime._pools[1][0]
    expected = torch.cat([pool[:, 5 * 16 + 10 : 6 * 16], pool[:, 2 * 16 : 3 * 16 + 4]], dim=1)
    data = subject.runtime.read_span([5, 2, 3], 10, 26, layer=1, channel=0)
    assert data == expected.contiguous().numpy().astype("<f4").tobytes()
    assert subject.runtime.read_span([5, 2, 3], 10, 0, 1, 0) == b""


def test_a_part_of_a_span_can_be_written(subject: Subject) -> None:
    subject.prefill(subject.tokens(40), [5, 2, 3])
    data = subject.runtime.read_span([5, 2, 3], 10, 26, 1, 0)
    subject.runtime.write_span([9, 8, 7], 10, 26, 1, 0, memoryview(data))
    assert subject.runtime.read_span([9, 8, 7], 10, 26, 1, 0) == data
    assert subject.runtime._pools[1][0][:, 9 * 16 : 9 * 16 + 10].isnan().all()
    assert subject.runtime._pools[1][0][:, 7 * 16 + 4 : 8 * 16].isnan().all()


@pytest.mark.parametrize("change", [-1, 1, -4, 4])
def test_a_span_of_the_wrong_length_writes_nothing(subject: Subject, change: int) -> None:
    data = bytes(subject.runtime.layout.span_bytes(0, 20) + change)
    with pytest.raises(ValueError, match="a span of 20 tokens has"):
        subject.runtime.write_span([1, 0], 0, 20, 0, 0, data)
    assert subject.runtime._pools[0][0].isnan().all()


def test_a_span_outside_the_table_writes_nothing(subject: Subject) -> None:
    data = bytes(subject.runtime.layout.span_bytes(0, 20))
    with pytest.raises(ValueError, match="outside a table"):
        subject.runtime.write_span([1, 0], 13, 20, 0, 0, data)
    assert subject.runtime._pools[0][0].isnan().all()


def test_copied_rows_leave_the_rest_of_the_block(subject: Subject) -> None:
    subject.prefill(subject.tokens(16), [1])
    subject.runtime.copy_rows(1, 4, 7)
    assert subject.state([4], 7) == subject.state([1], 7)
    for layer in subject.runtime._pools:
        for pool in layer:
            assert pool[:, 4 * 16 + 7 : 5 * 16].isnan().all()


@pytest.mark.parametrize(("source", "target", "count"), [(24, 0, 1), (0, -1, 1), (0, 1, 17), (0, 1, -1)])
def test_copies_out_of_range_are_refused(subject: Subject, source: int, target: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"no such block|slots, not"):
        subject.runtime.copy_rows(source, target, count)


def test_a_bad_row_is_refused_before_anything_is_written(subject: Subject) -> None:
    good = Row(subject.tokens(4), 0, [0], 1)
    with pytest.raises(ValueError, match="outside a table"):
        subject.runtime.forward(Batch((good, Row(subject.tokens(4), 14, [1], 1))))
    with pytest.raises(ValueError, match="at least one token"):
        subject.runtime.forward(Batch((good, Row(np.zeros(0, np.int32), 0, [1], 1))))
    with pytest.raises(ValueError, match="no logits for 5"):
        subject.runtime.forward(Batch((good, Row(subject.tokens(4), 0, [1], 5))))
    assert all(pool.isnan().all() for layer in subject.runtime._pools for pool in layer)


def test_spans_move_while_other_blocks_are_computed(subject: Subject) -> None:
    runtime = subject.runtime
    resident = list(range(5))
    prompt = subject.tokens(80)
    subject.prefill(prompt, resident)
    state = subject.state(resident, 80)

    def copy_to(first_block: int) -> bool:
        blocks = list(range(first_block, first_block + 5))
        subject.restore(blocks, 80, subject.state(resident, 80))
        return subject.state(blocks, 80) == state

    with ThreadPoolExecutor(2) as executor:
        copies = [executor.submit(copy_to, first) for first in (9, 14)]
        tail = subject.tokens(60)
        logits = runtime.forward(Batch((Row(tail, 0, [5, 6, 7, 8], 1),)))
        assert all(copy.result() for copy in copies)
    subject.check(logits[0], tail)
