"""Ways a sequence's state comes about; each must give the logits of a plain forward."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from services.engine.runtime import Batch, Row
from services.engine.runtime.gate import LayerGate
from tests.unit.engine.runtime.subject import Subject


def cold(subject: Subject) -> None:
    for num_tokens in (1, 2, 16, 17, 75):
        prompt = subject.tokens(num_tokens)
        subject.check(subject.prefill(prompt, subject.blocks(num_tokens)), prompt)


def chunked(subject: Subject) -> None:
    prompt = subject.tokens(90)
    for num_splits in (1, 6):
        splits = np.sort(subject.rng.choice(np.arange(1, 90), num_splits, replace=False)).tolist()
        blocks = subject.blocks(90)
        for start, stop in zip([0, *splits], [*splits, 90], strict=True):
            logits = subject.prefill(prompt[start:stop], blocks, start)
            if stop in (splits[0], 90):
                subject.check(logits, prompt[:stop])


def append_after_shared_prefix(subject: Subject) -> None:
    prefix = subject.tokens(3 * subject.block_tokens)
    shared = subject.blocks(len(prefix))
    subject.prefill(prefix, shared)
    subject.blocks(1)
    tails = [subject.tokens(n) for n in (21, 1, 9)]
    tables = [shared + subject.blocks(len(tail)) for tail in tails]
    rows = [Row(tail, len(prefix), table, 1) for tail, table in zip(tails, tables, strict=True)]
    for logits, tail in zip(subject.runtime.forward(Batch(tuple(rows))), tails, strict=True):
        subject.check(logits, np.concatenate([prefix, tail]))


def prefix_filled_in_the_same_step(subject: Subject) -> None:
    prefix, tail = subject.tokens(2 * subject.block_tokens), subject.tokens(5)
    shared = subject.blocks(len(prefix))
    append = Row(tail, len(prefix), shared + subject.blocks(5), 1)
    logits = subject.runtime.forward(Batch((append, Row(prefix, 0, shared, 1))))
    subject.check(logits[0], np.concatenate([prefix, tail]))
    subject.check(logits[1], prefix)


def restored(subject: Subject) -> None:
    prompt, tail = subject.tokens(70), subject.tokens(6)
    resident = subject.blocks(76)
    subject.prefill(prompt, resident)
    state = subject.state(resident, 70)
    subject.blocks(1)
    other = subject.blocks(76)
    subject.restore(other, 70, state)
    assert subject.state(other, 70) == state
    for chunk, start in ((tail, 70), (tail[:1], 70)):
        kept = subject.prefill(chunk, resident, start)
        restored = subject.prefill(chunk, other, start)
        assert torch.equal(kept, restored)
        subject.check(restored, np.concatenate([prompt, chunk]))


def restored_while_computed(subject: Subject) -> None:
    """Each layer of the step waits for its own layer of the state, and for no more."""
    prompt = subject.tokens(76)
    resident = subject.blocks(76)
    subject.prefill(prompt[:70], resident)
    state = subject.state(resident, 70)
    expected = subject.prefill(prompt[70:], resident, 70)
    subject.blocks(1)
    other, gate = subject.blocks(76), LayerGate()
    with ThreadPoolExecutor(1) as executor:
        restore = executor.submit(subject.restore, other, 70, state, gate)
        logits = subject.runtime.forward(Batch((Row(prompt[70:], 70, other, 1),), gate))
        restore.result()
    assert torch.equal(logits[0], expected)


def mixed_batch(subject: Subject) -> None:
    starts = (0, 40, 64, 31, 1, 80)
    lengths = (33, 20, 1, 1, 1, 2)
    wanted = (3, 0, 1, 1, 1, 1)
    rows: list[Row] = []
    sequences = [subject.tokens(start + n) for start, n in zip(starts, lengths, strict=True)]
    for sequence, start, num_logits in zip(sequences, starts, wanted, strict=True):
        blocks = subject.blocks(len(sequence))
        if start:
            subject.prefill(sequence[:start], blocks)
        rows.append(Row(sequence[start:], start, blocks, num_logits))
    logits = subject.runtime.forward(Batch(tuple(rows)))
    ends = [seq[: len(seq) - i] for seq, count in zip(sequences, wanted, strict=True) for i in reversed(range(count))]
    for row_logits, sequence in zip(logits, ends, strict=True):
        subject.check(row_logits, sequence)


def fragmented_table(subject: Subject) -> None:
    prompt = subject.tokens(120)
    blocks = subject.rng.permutation(subject.blocks(160))[:8].tolist()
    for start, stop in ((0, 50), (50, 51), (51, 119), (119, 120)):
        subject.check(subject.prefill(prompt[start:stop], blocks, start), prompt[:stop])


def forked_tail(subject: Subject) -> None:
    prompt = subject.tokens(2 * subject.block_tokens + 5)
    blocks = subject.blocks(len(prompt))
    subject.prefill(prompt, blocks)
    forks = [blocks[:2] + subject.blocks(subject.block_tokens) for _ in range(2)]
    for fork in forks:
        subject.runtime.copy_rows(blocks[2], fork[2], 5)
    tails = [subject.tokens(4), subject.tokens(4)]
    rows = [Row(t, len(prompt), table, 1) for t, table in zip(tails, forks, strict=True)]
    for logits, tail in zip(subject.runtime.forward(Batch(tuple(rows))), tails, strict=True):
        subject.check(logits, np.concatenate([prompt, tail]))
    tail = subject.tokens(1)
    subject.check(subject.prefill(tail, blocks, len(prompt)), np.concatenate([prompt, tail]))


def greedy_decode(subject: Subject) -> None:
    sequence = subject.tokens(28)
    blocks = subject.blocks(40)
    logits = subject.prefill(sequence, blocks)
    for _ in range(6):
        assert logits.cpu().argmax() == subject.expected(sequence).argmax()
        sequence = np.append(sequence, np.int32(logits.argmax().item()))
        logits = subject.prefill(sequence[-1:], blocks, len(sequence) - 1)
    subject.check(logits, sequence)


def drafts_beside_other_rows(subject: Subject) -> None:
    """Logits behind each token of a draft; what a wrong one left in the pools is written over."""
    sequences = [subject.tokens(n) for n in (60, 41, 33)]
    tables = [subject.blocks(n + 12) for n in (60, 41, 33)]
    for sequence, table in zip(sequences, tables, strict=True):
        subject.prefill(sequence[:-1], table)
    drafts = [subject.tokens(6), subject.tokens(0), subject.tokens(3)]
    rows = [
        Row(np.concatenate([sequence[-1:], draft]), len(sequence) - 1, table, 1 + len(draft))
        for sequence, draft, table in zip(sequences, drafts, tables, strict=True)
    ]
    logits = iter(subject.runtime.forward(Batch(tuple(rows))))
    for sequence, draft in zip(sequences, drafts, strict=True):
        for position in range(1 + len(draft)):
            subject.check(next(logits), np.concatenate([sequence, draft[:position]]))
    right = np.concatenate([sequences[0], drafts[0][:2], subject.tokens(1)])
    subject.check(subject.prefill(right[-1:], tables[0], len(right) - 1), right)


SCENARIOS: tuple[Callable[[Subject], None], ...] = (
    cold,
    chunked,
    append_after_shared_prefix,
    prefix_filled_in_the_same_step,
    restored,
    restored_while_computed,
    mixed_batch,
    fragmented_table,
    forked_tail,
    greedy_decode,
    drafts_beside_other_rows,
)
