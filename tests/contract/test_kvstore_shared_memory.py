"""State read through memory that the reader lends: the same bytes as through the socket, and clear refusals."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from fencepost.kvstore.v1 import snapshot_pb2
from kvstore_client import Client, Restored, State, serving, state


def region(folder: Path, name: str = "lent", size: int = 1_000_000) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(random.Random(1).randbytes(size))
    return path


def request(written: State, **changes: Any) -> snapshot_pb2.ReadRequest:
    fields: dict[str, Any] = {
        "namespace": written.namespace,
        "page_keys": written.page_keys,
        "manifest_id": written.manifest_id,
        "layer_order": snapshot_pb2.LAYER_ORDER_LAYER_MAJOR,
        "region": snapshot_pb2.SharedRegion(name="lent", offset=1_000, length=100_000),
    }
    return snapshot_pb2.ReadRequest(**(fields | changes))


async def read(client: Client, asked: snapshot_pb2.ReadRequest, path: Path) -> Restored:
    restored = Restored()
    chunks = [chunk async for response in client.snapshots.Read(asked) for chunk in response.chunks]
    content = path.read_bytes()  # noqa: ASYNC240
    for chunk in chunks:
        assert not chunk.data
        start = asked.region.offset + chunk.placed.offset
        restored.add(chunk, content[start : start + chunk.placed.length])
    return restored


@pytest.mark.parametrize("order", [1, 2])
async def test_lent_memory_holds_what_the_socket_would_carry(tmp_path: Path, order: int) -> None:
    path, written = region(tmp_path / "shared"), state(800, boundary=b"end")
    async with serving(tmp_path / "kv", shared_memory_dir=str(tmp_path / "shared")) as client:
        await client.write(written)
        lent = await read(client, request(written, layer_order=order), path)
        sent = await client.read(written, order=order)
    assert (lent.channels, lent.token_ids, lent.order) == (sent.channels, sent.token_ids, sent.order)
    outside = random.Random(1).randbytes(1_000_000)
    assert path.read_bytes()[:1_000] == outside[:1_000]
    assert path.read_bytes()[101_000:] == outside[101_000:]


async def test_region_that_cannot_be_used_is_refused_and_reading_goes_on_without(tmp_path: Path) -> None:
    region(tmp_path / "shared", size=50_000)
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "shared" / "lent")
    (tmp_path / "shared" / "folder").mkdir()
    written = state(800)
    lent = snapshot_pb2.SharedRegion
    bad = {
        "../kv/FORMAT": ("INVALID_ARGUMENT", "region.name"),
        "": ("INVALID_ARGUMENT", "region.name"),
        "missing": ("FAILED_PRECONDITION", "No such file"),
        "link": ("FAILED_PRECONDITION", "link"),
        "folder": ("FAILED_PRECONDITION", "folder"),
        "lent": ("FAILED_PRECONDITION", "not a file of 101000 bytes"),
    }
    async with serving(tmp_path / "kv", shared_memory_dir=str(tmp_path / "shared")) as client:
        await client.write(written)
        for name, (code, text) in bad.items():
            asked = request(written, region=lent(name=name, offset=1_000, length=100_000))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await client.snapshots.Read(asked).read()
            assert (error.value.code().name, text in (error.value.details() or "")) == (code, True), name
        asked = request(written, region=lent(name="lent", offset=0, length=500))
        with pytest.raises(grpc.aio.AioRpcError, match=r"region\.length"):
            await client.snapshots.Read(asked).read()
        assert await client.full_hit(written)
    async with serving(tmp_path / "kv") as client:
        with pytest.raises(grpc.aio.AioRpcError, match="no folder of shared memory"):
            await client.snapshots.Read(request(written)).read()
        assert await client.full_hit(written)
