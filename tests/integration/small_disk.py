"""A disk that is small enough to be filled, and states that are large enough to fill it."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from crc32c import crc32c
from fencepost.kvstore.v1 import record_pb2, snapshot_pb2

from tests.contract.kvstore_client import Client, State, ids

MIB = 2**20
_BLOCK_BYTES = 4_096


class LargeState(State):
    """Sent as one chunk a channel."""

    def chunks(self, pages: Sequence[int]) -> Iterator[snapshot_pb2.Chunk]:
        num_pages = len(self.page_keys)
        for page in [*pages, *([num_pages] if self.tail_ids else [])]:
            owner: dict[str, Any] = (
                {"page_key": self.page_keys[page]} if page < num_pages else {"tail": snapshot_pb2.Tail()}
            )
            for layer in range(self.layers):
                for channel in range(2):
                    data = self.channel(page, layer, channel)
                    yield snapshot_pb2.Chunk(
                        **owner,
                        layer=layer,
                        channel=channel,
                        total=len(data),
                        crc32c=crc32c(data),
                        data=data,
                        token_ids=self.page_ids(page) if (layer, channel) == (0, 0) else None,
                    )


def large_state(seed: int, mib: int = 3) -> LargeState:
    """A page and a tail that take ``mib`` MiB together, at most 8.

    The store takes in 4 MiB at a time: less is looked at when the client waits for the answer to its commit, so that it
    cannot be refused in the middle of a message.
    """
    return LargeState(ids(300, seed), random.Random(seed).randbytes(16), channel_bytes=mib * MIB // 8)


class SmallDisk:
    """A file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    @property
    def free_bytes(self) -> int:
        return shutil.disk_usage(self.path).free

    def fill(self, leave: int = 0) -> None:
        """Leave that many bytes free, to a block; what was left before doesn't matter."""
        with self._ballast.open("ab") as file:
            while (excess := self.free_bytes - leave) >= _BLOCK_BYTES:
                file.write(bytes(min(excess, MIB)))
                file.flush()
            file.truncate(max(0, file.tell() + excess))

    def make_space(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, mib: int = 64) -> Generator[SmallDisk]:
    """Mount one; skips the test where that isn't allowed."""
    path.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("a small disk needs the command mount")
    if done.returncode:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(("umount", "--lazy", str(path)), check=True)


async def write(client: Client, state: State) -> grpc.StatusCode | bool:
    """True when stored, False when dropped, else the status."""
    call = client.snapshots.Write()
    try:
        await call.write(snapshot_pb2.WriteRequest(header=state.header()))
        need = (await call.read()).need
        return (await client.finish(call, state.chunks(need.pages))).stored
    except (grpc.aio.AioRpcError, AttributeError, grpc.aio.UsageError):
        # Writing to a call that the server has ended says less than the call itself.
        return await call.code()


async def put(client: Client, key: bytes, value: bytes) -> grpc.StatusCode:
    request = record_pb2.PutRequest(kind=record_pb2.RECORD_KIND_REPLAY, tenant="tenant", key=key, value=value)
    try:
        await client.records.Put(request)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def get(client: Client, key: bytes) -> bytes:
    request = record_pb2.GetRequest(kind=record_pb2.RECORD_KIND_REPLAY, tenant="tenant", key=key)
    return (await client.records.Get(request)).value
