"""How stored state comes back: through a socket or lent memory, whole, in part, slowly or not at all."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.kvstore.v1 import snapshot_pb2

from tests.contract.engine_client import run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.slow_store import run_slow_store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=4)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


@pytest.fixture
async def store(tmp_path: Path, shared: Path) -> AsyncGenerator[str]:
    async with run_kvstore(tmp_path / "kv", shared_memory_dir=str(shared)) as address:
        yield address


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=length)


async def stored(store: str, model: Path, ids: list[int], max_tokens: int = 1) -> tuple[int, ...]:
    async with run_engine(model, store, vram_bytes=2**26) as engine:
        answer = await engine.generate(ids, max_tokens)
        await engine.settled()
    return answer.ids


async def cold(model: Path, ids: list[int], max_tokens: int) -> tuple[int, ...]:
    async with run_engine(model, vram_bytes=2**26) as engine:
        return (await engine.generate(ids, max_tokens)).ids


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("staging_bytes", [2**20, 2**22])
async def test_lent_memory_and_the_socket_bring_the_same_state(
    store: str, model: Path, shared: Path, staging_bytes: int
):
    ids = prompt(1, 1_500)
    more = [*ids, *await stored(store, model, ids, 10), *prompt(2, 9)]
    expected = await cold(model, more, 12)
    async with run_engine(model, store, shared_memory_dir=str(shared), staging_bytes=staging_bytes) as engine:
        lent = await engine.generate(more, 12, persist=False)
        assert len(files(shared)) == 2
    assert not files(shared)
    async with run_engine(model, store) as engine:
        sent = await engine.generate(more, 12, persist=False)
    for answer in (lent, sent):
        assert (answer.cached(pb.TIER_SSD), answer.ids) == (1_509, expected)


async def test_a_store_that_cannot_reach_the_memory_sends_the_bytes(tmp_path: Path, model: Path):
    ids, elsewhere = prompt(3, 700), tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with run_kvstore(tmp_path / "kv") as store:
        await stored(store, model, ids)
        async with run_engine(model, store, shared_memory_dir=str(elsewhere)) as engine:
            assert (await engine.generate([*ids, 5], 2)).cached(pb.TIER_SSD) == 700
            assert (await engine.settled()).held_blocks == 0


@pytest.mark.parametrize("length", [200, 255, 256, 257, 511, 640])
async def test_an_exact_repeat_and_a_rewind_compute_one_token(store: str, model: Path, length: int):
    ids = prompt(4, 640)
    await stored(store, model, ids, 4)
    expected = await cold(model, ids[:length], 6)
    async with run_engine(model, store) as engine:
        answer = await engine.generate(ids[:length], 6, persist=False)
        assert answer.cached(pb.TIER_SSD) == length - 1
        assert answer.usage.cached.recomputed_tokens == 1
    assert answer.ids == expected


@pytest.mark.parametrize("agreed", [100, 300, 512, 600])
async def test_a_fork_is_restored_up_to_its_token(store: str, model: Path, agreed: int):
    ids = prompt(5, 640)
    await stored(store, model, ids, 4)
    forked = [*ids[:agreed], *(499 - i for i in ids[agreed : agreed + 40])]
    async with run_engine(model, store) as engine:
        answer = await engine.generate(forked, 6, persist=False)
        assert answer.cached(pb.TIER_SSD) == agreed
    assert answer.ids == await cold(model, forked, 6)


async def test_a_link_that_breaks_loses_the_hit_and_not_the_request(store: str, model: Path):
    ids = prompt(6, 1_200)
    await stored(store, model, ids)
    async with run_slow_store(store) as (slow, address), run_engine(model, address) as engine:
        slow.fail_after_bytes = 200_000
        answer = await engine.generate([*ids, 9], 5)
        assert answer.cached() == 0
        assert answer.usage.cached.miss.reason == pb.MISS_REASON_RESTORE_FAILED
        load = await engine.settled()
        assert (load.held_blocks, load.leases) == (0, 0)
    assert answer.ids == await cold(model, [*ids, 9], 5)


def _flip(chunk: snapshot_pb2.Chunk) -> None:
    chunk.data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:]


def _other_ids(chunk: snapshot_pb2.Chunk) -> None:
    chunk.token_ids = chunk.token_ids[::-1]


def _another_layout(chunk: snapshot_pb2.Chunk) -> None:
    chunk.total += 64


def _elsewhere(chunk: snapshot_pb2.Chunk) -> None:
    chunk.layer += 1


@pytest.mark.parametrize("at", [0, 3, 4, 8, 13, 19])
@pytest.mark.parametrize("change", [_flip, _other_ids, _another_layout, _elsewhere, None, "end", "twice"])
async def test_whatever_a_store_sends_wrong_shortens_the_hit(store: str, model: Path, change: object, at: int):
    """``at`` counts chunks: four pages and a tail in four layers."""
    ids = prompt(8, 1_100)
    await stored(store, model, ids)
    seen = 0

    def tamper(chunks: list[snapshot_pb2.Chunk]) -> list[snapshot_pb2.Chunk] | None:
        nonlocal seen
        index, seen = at - seen, seen + len(chunks)
        if 0 <= index < len(chunks):
            if change == "end":
                return None
            if change == "twice":
                return [*chunks[: index + 1], chunks[index], *chunks[index + 1 :]]
            if change is None:
                return [*chunks[:index], *chunks[index + 1 :]]
            change(chunks[index])  # type: ignore[operator]
        return chunks

    async with run_slow_store(store) as (slow, address), run_engine(model, address) as engine:
        slow.tamper = tamper
        answer = await engine.generate([*ids, 9], 5, persist=False)
        assert seen == 20 or change == "end"
        cached = answer.cached(pb.TIER_SSD)
        # Only the first chunk of a page has ids to be looked at, and behind the last one everything is there.
        is_harmless = (change is _other_ids and at >= 5) or (change == "twice" and at == 19)
        assert cached == 1_100 if is_harmless else cached in (0, 256, 512, 768, 1_024)
        if change is _flip:
            assert cached == 256 * (at % 5)
        assert (await engine.settled()).held_blocks == 0
    assert answer.ids == await cold(model, [*ids, 9], 5)


def costly_model(folder: Path) -> Path:
    """Large enough for computing to cost something."""
    return write_tiny_engine_model(folder / "wider", num_hidden_layers=12, hidden_size=128, intermediate_size=512)


async def test_a_restore_that_takes_far_longer_than_computing_is_given_up(store: str, tmp_path: Path):
    ids, model = prompt(7, 1_200), costly_model(tmp_path)
    await stored(store, model, ids)
    async with (
        run_slow_store(store, bytes_per_s=20_000) as (_, address),
        run_engine(model, address, vram_bytes=2**26, restore="cost") as engine,
    ):
        answer = await engine.generate([*ids, 9], 5)
        assert answer.cached() == 0
        assert answer.usage.cached.miss.reason == pb.MISS_REASON_RESTORE_FAILED
        assert answer.usage.timings.restored_ms < 30_000
    assert answer.ids == await cold(model, [*ids, 9], 5)


async def test_by_cost_a_slow_store_is_left_alone_and_a_fast_one_is_used(store: str, tmp_path: Path):
    model = costly_model(tmp_path)
    prompts = [prompt(20 + seed, 1_000) for seed in range(4)]
    async with run_engine(model, store, vram_bytes=2**26) as engine:
        for ids in prompts:
            await engine.generate(ids, 1)
        await engine.settled()
        bytes_per_token = (await engine.stub.GetModel(pb.GetModelRequest())).bytes_per_token
    async with (
        run_slow_store(store, bytes_per_s=60 * bytes_per_token) as (slow, address),
        run_engine(model, address, vram_bytes=2**26, restore="cost") as engine,
    ):
        await engine.generate(prompt(40, 1_000), 1, persist=False)
        # One is tried, which teaches what the link carries; after that nobody waits for it.
        await engine.generate([*prompts[0], 7], 2, persist=False)
        tried = slow.bytes_read
        rest = [await engine.generate([*ids, 7], 2, persist=False) for ids in prompts[1:]]
        assert slow.bytes_read == tried
        misses = [answer.usage.cached.miss for answer in rest]
        assert [(miss.reason, miss.at_token) for miss in misses] == [(pb.MISS_REASON_RESTORE_SKIPPED, 0)] * 3
    async with run_engine(model, store, vram_bytes=2**26, restore="cost") as engine:
        await engine.generate(prompt(40, 1_000), 1, persist=False)
        assert (await engine.generate([*prompts[1], 7], 2, persist=False)).cached(pb.TIER_SSD) == 1_000
