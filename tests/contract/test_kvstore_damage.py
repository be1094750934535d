"""Whatever happens to bytes on disk, a reader gets right bytes or a shorter hit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kvstore_client import NAMESPACE, Restored, State, expected, serving, state

from services.kvstore.database import Batch, Database, Family
from services.kvstore.format import chunk_key, decode_manifest, decode_page, manifest_key, page_row_key
from services.kvstore.state import ManifestId, Namespace, PageKey


@contextmanager
def _opened(data_dir: Path) -> Generator[Database]:
    database = Database(data_dir, 1)
    try:
        yield database
    finally:
        database.close()


def _chunk_key(database: Database, written: State, page: int | None, index: int) -> bytes:
    """Key of a chunk of a page, or (None) of the tail."""
    namespace = Namespace(NAMESPACE)
    if page is None:
        row = database.get("manifests", manifest_key(namespace, ManifestId(written.manifest_id)))
        assert row is not None
        blob = decode_manifest(row).tail
    else:
        row = database.get("index", page_row_key(namespace, PageKey(written.page_keys[page])))
        assert row is not None
        blob = decode_page(row).blob
    assert blob is not None
    return chunk_key(blob.blob_id, blob.spans[index])


def _check_prefix(restored: Restored, written: State, first_bad: int) -> None:
    """Nothing wrong was sent, and nothing behind the damage."""
    whole = expected(written)
    assert all(whole[place].startswith(data) for place, data in restored.channels.items())
    good = {place: data for place, data in whole.items() if place[0] in written.page_keys[:first_bad]}
    assert {place: data for place, data in restored.channels.items() if place in good} == good


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("page", [0, 1, 2, None])
async def test_flipped_byte_in_a_chunk_shortens_the_hit(tmp_path: Path, page: int | None, order: int) -> None:
    written = state(800)
    num_pages = len(written.page_keys)
    first_bad = num_pages if page is None else page
    rng = random.Random(f"{page} {order}")
    async with serving(tmp_path / "kv") as client:
        await client.write(written)
    with _opened(tmp_path / "kv") as database:
        key = _chunk_key(database, written, page, rng.randrange(8))
        value = bytearray(database.get("pages", key) or b"")
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        database.put_chunks([(key, bytes(value))])
        database.flush_pages()
    async with serving(tmp_path / "kv") as client:
        restored = await client.read(written, order=order)
        assert [first for first, _ in restored.skipped] == [first_bad]
        assert restored.skipped[0][1] in ("checksum", "format", "length")
        _check_prefix(restored, written, first_bad)
        assert (await client.stats()).verify_failures == 1
        found = await client.match(written)
        assert (found.pages_present, found.HasField("boundary")) == (first_bad, False)
        # What was before the damage is still there, and the rest can be written again.
        assert len((await client.read(written, tail=False)).token_ids) == first_bad
        assert (await client.write(written)).stored
        assert await client.full_hit(written)
    async with serving(tmp_path / "kv") as client:
        assert await client.full_hit(written)


async def test_chunk_of_another_page_under_this_key_is_not_sent(tmp_path: Path) -> None:
    written = state(800)
    async with serving(tmp_path / "kv") as client:
        await client.write(written)
    with _opened(tmp_path / "kv") as database:
        other = database.get("pages", _chunk_key(database, written, 0, 3))
        assert other is not None
        database.put_chunks([(_chunk_key(database, written, 1, 3), other)])
        database.flush_pages()
    async with serving(tmp_path / "kv") as client:
        assert (await client.read(written)).skipped == [(1, "format")]


async def test_lost_chunks_are_a_shorter_hit(tmp_path: Path) -> None:
    written = state(800)
    async with serving(tmp_path / "kv") as client:
        await client.write(written)
    with _opened(tmp_path / "kv") as database:
        database.delete_blobs([decode_page(database.scan("index", b"P", 1)[0][1]).blob.blob_id])
        first_lost = written.page_keys.index(database.scan("index", b"P", 1)[0][0][-16:])
        database.flush_pages()
    async with serving(tmp_path / "kv") as client:
        assert (await client.match(written)).pages_present == first_lost
        assert (await client.stats()).verify_failures >= 1


@pytest.mark.parametrize("family", ["manifests", "index"])
async def test_flipped_byte_in_a_row_drops_what_it_named(tmp_path: Path, family: Family) -> None:
    written, other = state(800), state(300, 9)
    async with serving(tmp_path / "kv") as client:
        await client.write(written)
        await client.write(other)
    with _opened(tmp_path / "kv") as database:
        namespace = Namespace(NAMESPACE)
        if family == "manifests":
            key = manifest_key(namespace, ManifestId(written.manifest_id))
            value = bytearray(database.get("manifests", key) or b"")
        else:
            key = page_row_key(namespace, PageKey(written.page_keys[1]))
            value = bytearray(database.get("index", key) or b"")
        value[len(value) // 2] ^= 4
        batch = Batch()
        batch.put(family, key, bytes(value))
        database.write_durably(batch)
    async with serving(tmp_path / "kv") as client:
        found = await client.match(written)
        assert found.pages_present == (0 if family == "manifests" else 1)
        assert not found.HasField("boundary")
        assert (await client.stats()).orphan_pages > 0
        assert await client.full_hit(other)
        assert (await client.write(written)).stored
        assert await client.full_hit(written)


async def test_flipped_byte_in_any_file_never_gives_wrong_bytes(tmp_path: Path) -> None:
    written, rng = state(800), random.Random(5)
    async with serving(tmp_path / "kv") as client:
        await client.write(written)
    # Opened once more, so that what was in the log lies in tables.
    async with serving(tmp_path / "kv"):
        pass
    names = [path.name for path in sorted((tmp_path / "kv" / "rocksdb").iterdir()) if path.stat().st_size]
    for name in names:
        if name.startswith(("LOG", "LOCK", "OPTIONS", "IDENTITY")):
            continue
        copy = tmp_path / name
        shutil.copytree(tmp_path / "kv", copy)
        content = bytearray((copy / "rocksdb" / name).read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (copy / "rocksdb" / name).write_bytes(content)
        async with serving(copy) as client:
            restored, whole = await client.read(written), expected(written)
            assert all(whole[place].startswith(data) for place, data in restored.channels.items())
            assert restored.skipped or restored.channels == whole
            assert (await client.write(written)).stored
            assert await client.full_hit(written)
