"""One flipped bit anywhere in what is stored: right tokens from a shorter hit, a counted failure, a living store."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from services.kvstore.database import Batch, Family
from services.kvstore.format import blob_range, decode_page, manifest_key, page_row_key
from services.kvstore.state import Blob
from tests.contract.engine_client import run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.kvstore_client import Client, Restored, serving
from tests.integration.stored_state import StoredState, manifests, opened, stored_state

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_VALUE_BYTES = 56 if IS_SOAK else 2
NUM_KEY_BYTES = 32 if IS_SOAK else 1
# In the soak most positions are read with a client of the store, which is quicker than an engine.
ENGINE_EVERY = 6 if IS_SOAK else 1

FIRST, SECOND = 304, 704
"""Tokens of the two terminal states: a page and a tail; that page, one more and another tail."""

# What of the second state's 704 tokens is left to the next turn. The first state, one page and its tail, takes over
# where a start has found the second one's own rows damaged; damage found by a read ends that read.
HIT_BY_KIND = {
    "page 0 chunk": 0,
    "page 1 chunk": 256,
    "first tail chunk": SECOND,
    "second tail chunk": 512,
    "page 0 row": 0,
    "page 1 row": FIRST,
    "first manifest": SECOND,
    "second manifest": FIRST,
}
# First unusable page, when the first and then the second state is read; the number of pages stands for the tail.
SKIPPED_BY_KIND: dict[str, tuple[int | None, int | None]] = {
    "page 0 chunk": (0, 0),
    "page 1 chunk": (None, 1),
    "first tail chunk": (1, None),
    "second tail chunk": (None, 2),
    "page 0 row": (0, 0),
    "page 1 row": (None, 1),
    "first manifest": (1, None),
    "second manifest": (None, 1),
}
FOUND_BY_START = {"page 0 row", "page 1 row", "first manifest", "second manifest"}


@dataclass(frozen=True)
class Stored:
    """A conversation of two turns on disk, the prompts of the next two and their cold answers."""

    data_dir: Path
    states: tuple[StoredState, StoredState]
    whole: tuple[Restored, Restored]
    prompt: list[int]
    answer: tuple[int, ...]
    next_prompt: list[int]
    next_answer: tuple[int, ...]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


async def store_conversation(model: Path, data_dir: Path) -> Stored:
    rng = random.Random(1)
    ids = rng.choices(range(3, 500), k=FIRST - 4)
    terminal: list[list[int]] = []
    async with run_kvstore(data_dir) as address, run_engine(model, address) as engine:
        for length in (FIRST, SECOND):
            ids += rng.choices(range(3, 500), k=length - 4 - len(ids))
            ids += (await engine.generate(ids, 5)).ids
            await engine.settled()
            terminal.append(ids[:-1])
    async with run_engine(model) as engine:
        prompt = [*ids, 7, 8, 9]
        answer = (await engine.generate(prompt, 6)).ids
        next_prompt = [*prompt, *answer, 11]
        next_answer = (await engine.generate(next_prompt, 6, scope="other")).ids
    with opened(data_dir) as database:
        found = manifests(database)
    states = (stored_state(found[0], terminal[0]), stored_state(found[1], terminal[1]))
    async with serving(data_dir) as client:
        whole = (await client.read(states[0]), await client.read(states[1]))
    return Stored(data_dir, states, whole, prompt, answer, next_prompt, next_answer)


def rows_of(data_dir: Path, kind: str) -> list[tuple[Family, bytes, bytes]]:
    """Every (family, key, value) of one kind of record."""
    with opened(data_dir) as database:
        first, second = manifests(database)

        def row(family: Family, key: bytes) -> tuple[Family, bytes, bytes]:
            value = database.get(family, key)
            assert value is not None
            return family, key, value

        pages = [row("index", page_row_key(second.namespace, key)) for key in second.page_keys]
        rows: dict[str, tuple[Family, bytes, bytes]] = {
            "page 0 row": pages[0],
            "page 1 row": pages[1],
            "first manifest": row("manifests", manifest_key(first.namespace, first.manifest_id)),
            "second manifest": row("manifests", manifest_key(second.namespace, second.manifest_id)),
        }
        if kind in rows:
            return [rows[kind]]
        blobs: dict[str, Blob | None] = {
            "page 0 chunk": decode_page(pages[0][2]).blob,
            "page 1 chunk": decode_page(pages[1][2]).blob,
            "first tail chunk": first.tail,
            "second tail chunk": second.tail,
        }
        blob = blobs[kind]
        assert blob is not None
        prefix = blob_range(blob.blob_id)[0]
        return [("pages", key, value) for key, value in database.scan("pages", prefix, 100)]


def flip(data_dir: Path, family: Family, key: bytes, value: bytes, at: int, bit: int) -> None:
    """Flip one bit of key and value, put behind one another."""
    both = bytearray(key + value)
    both[at] ^= 1 << bit
    batch = Batch()
    batch.put(family, bytes(both[: len(key)]), bytes(both[len(key) :]))
    if at < len(key):
        batch.delete(family, key)
    with opened(data_dir) as database:
        database.write_durably(batch)


async def check_by_client(client: Client, stored: Stored, kind: str) -> None:
    """What comes out is right as far as it goes, goes as far as it should, and what was damaged is counted."""
    for number, (state, whole) in enumerate(zip(stored.states, stored.whole, strict=True)):
        first_bad = SKIPPED_BY_KIND[kind][number]
        restored = await client.read(state)
        assert [first for first, _ in restored.skipped] == ([] if first_bad is None else [first_bad])
        assert restored.token_ids.items() <= whole.token_ids.items()
        assert restored.channels.items() <= whole.channels.items()
        good = {*state.page_keys[:first_bad], *([b"tail"] if first_bad is None else [])}
        assert {place for place in whole.channels if place[0] in good} <= restored.channels.keys()
        found = await client.match(state)
        # Behind its only good page, the second state's tokens go on as the first one's do.
        left = FIRST if (number, first_bad) == (1, 1) else 0
        assert found.boundary.tokens == (state.num_tokens if first_bad is None else left)
        assert found.pages_present == (len(state.page_keys) if first_bad is None else first_bad)
        await client.lease(lease_id=found.lease_id, release=True)


async def check_by_engine(model: Path, address: str, stored: Stored, kind: str) -> None:
    """A fresh engine answers as if nothing had been stored, and what it stores then is whole again."""
    hit = HIT_BY_KIND[kind]
    async with run_engine(model, address) as engine:
        answer = await engine.generate(stored.prompt, 6)
        assert answer.ids == stored.answer
        assert answer.cached(pb.TIER_SSD) == answer.cached() == hit
        assert answer.usage.cached.recomputed_tokens == len(stored.prompt) - hit
        assert (await engine.settled()).held_blocks == 0
    async with run_engine(model, address) as engine:
        answer = await engine.generate(stored.next_prompt, 6)
        assert answer.ids == stored.next_answer
        assert answer.cached(pb.TIER_SSD) == len(stored.next_prompt) - 2
        await engine.settled()


def positions(rng: random.Random, num_key_bytes: int, num_value_bytes: int) -> list[int]:
    """Bytes to flip of a key and the value behind it: the ends of the value, and others anywhere."""
    keys = rng.sample(range(num_key_bytes), min(NUM_KEY_BYTES, num_key_bytes))
    ends = rng.sample([0, 5, 9, num_value_bytes - 1], min(4, NUM_VALUE_BYTES // 2))
    inside = rng.sample(range(12, num_value_bytes - 4), NUM_VALUE_BYTES - len(ends))
    return [*keys, *(num_key_bytes + at for at in (*ends, *inside))]


@pytest.mark.parametrize("kind", HIT_BY_KIND)
async def test_flipped_bit_shortens_the_hit_and_no_more(tmp_path: Path, model: Path, kind: str) -> None:
    stored = await store_conversation(model, tmp_path / "kv")
    rng = random.Random(kind)
    rows = rows_of(stored.data_dir, kind)
    # Lengths differ by the first chunk's ids only.
    for number, at in enumerate(positions(rng, len(rows[0][1]), min(len(value) for _, _, value in rows))):
        copy = tmp_path / str(number)
        shutil.copytree(stored.data_dir, copy)
        flip(copy, *rng.choice(rows), at, rng.randrange(8))
        async with run_kvstore(copy) as address, rpc.open_channel(address) as channel:
            client = Client(channel)
            assert ((await client.stats()).verify_failures > 0) == (kind in FOUND_BY_START)
            if number % ENGINE_EVERY == 0:
                await check_by_engine(model, address, stored, kind)
                # No reader came by the first state's tail.
                assert ((await client.stats()).verify_failures > 0) == (kind != "first tail chunk")
            else:
                await check_by_client(client, stored, kind)
                assert (await client.stats()).verify_failures > 0
            assert (await client.stats()).leases == 0
        shutil.rmtree(copy)
