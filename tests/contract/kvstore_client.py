"""A small client of the kvstore and small states to put into it."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc.aio
from crc32c import crc32c
from fencepost.kvstore.v1 import record_pb2_grpc, snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from services.identity import PAGE_TOKENS, page_key_secret, page_keys
from services.kvstore.config import Config
from services.kvstore.server import build

NAMESPACE = b"n" * 32
_SECRET = page_key_secret("scope", "tokenizer")


@dataclass(frozen=True)
class State:
    """A terminal state of a toy model: bytes that depend on the ids before them, and chunks of 100 bytes."""

    token_ids: bytes
    manifest_id: bytes
    parent_id: bytes | None = None
    is_head: bool = True
    boundary: bytes = b""
    tenant: str = "tenant"
    layers: int = 2
    channel_bytes: int = 150
    namespace: bytes = NAMESPACE

    @property
    def page_keys(self) -> list[bytes]:
        return page_keys(_SECRET, self.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4

    @property
    def tail_ids(self) -> bytes:
        return self.token_ids[len(self.page_keys) * PAGE_TOKENS * 4 :]

    def page_ids(self, index: int) -> bytes:
        return self.token_ids[index * PAGE_TOKENS * 4 : (index + 1) * PAGE_TOKENS * 4]

    def channel(self, page: int, layer: int, channel: int) -> bytes:
        """Bytes of a channel of a page, or (page = number of pages) of the tail."""
        end = min(len(self.token_ids), (page + 1) * PAGE_TOKENS * 4)
        rng = random.Random(self.token_ids[:end] + bytes([layer, channel]))
        return rng.randbytes(self.channel_bytes)

    def header(self) -> snapshot_pb2.WriteHeader:
        return snapshot_pb2.WriteHeader(
            namespace=self.namespace,
            manifest_id=self.manifest_id,
            parent_manifest_id=self.parent_id,
            is_head=self.is_head,
            token_count=self.num_tokens,
            resident_bytes=1,
            page_keys=self.page_keys,
            tail_token_ids=self.tail_ids,
            has_boundary=bool(self.boundary),
            tenant=self.tenant,
            page_tokens=PAGE_TOKENS,
        )

    def chunks(self, pages: Sequence[int]) -> Iterator[snapshot_pb2.Chunk]:
        """Chunks of some pages, then of the tail and the boundary record."""
        num_pages = len(self.page_keys)
        for page in [*pages, *([num_pages] if self.tail_ids else [])]:
            owner: dict[str, Any] = (
                {"page_key": self.page_keys[page]} if page < num_pages else {"tail": snapshot_pb2.Tail()}
            )
            for layer in range(self.layers):
                for channel in range(2):
                    data = self.channel(page, layer, channel)
                    for offset in range(0, len(data), 100):
                        ids = self.page_ids(page) if (layer, channel, offset) == (0, 0, 0) else None
                        yield chunk(owner, layer, channel, offset, data, ids)
        if self.boundary:
            yield chunk({"boundary": snapshot_pb2.BoundaryRecord()}, 0, 0, 0, self.boundary, None)

    def then(self, num_tokens: int, seed: int, **changes: Any) -> State:
        """The state after more tokens, whose parent this one is."""
        more = ids(num_tokens, seed)
        new_id = random.Random(self.manifest_id + more).randbytes(16)
        return replace(self, token_ids=self.token_ids + more, manifest_id=new_id, parent_id=self.manifest_id, **changes)


def ids(count: int, seed: int) -> bytes:
    rng = random.Random(seed)
    return b"".join(rng.randrange(50_000).to_bytes(4, "little") for _ in range(count))


def state(num_tokens: int, seed: int = 0, **changes: Any) -> State:
    return State(ids(num_tokens, seed), random.Random(f"{num_tokens} {seed} {changes}").randbytes(16), **changes)


def chunk(
    owner: dict[str, Any], layer: int, channel: int, offset: int, data: bytes, token_ids: bytes | None
) -> snapshot_pb2.Chunk:
    part = data[offset : offset + 100]
    return snapshot_pb2.Chunk(
        **owner,
        layer=layer,
        channel=channel,
        offset=offset,
        total=len(data),
        crc32c=crc32c(part),
        data=part,
        token_ids=token_ids,
    )


@dataclass
class Restored:
    """What a Read sent, put together; a page is there only when all its bytes are."""

    channels: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict)
    token_ids: dict[bytes, bytes] = field(default_factory=dict)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    order: list[tuple[bytes, int]] = field(default_factory=list)

    def add(self, part: snapshot_pb2.Chunk, data: bytes) -> None:
        assert crc32c(data) == part.crc32c
        owner = part.page_key or str(part.WhichOneof("owner")).encode()
        place = (owner, part.layer, part.channel)
        assert len(self.channels.get(place, b"")) == part.offset
        assert part.HasField("token_ids") == (place[1:] == (0, 0) and part.offset == 0 and owner != b"boundary")
        self.channels[place] = self.channels.get(place, b"") + data
        self.order.append((owner, part.layer))
        if part.HasField("token_ids"):
            self.token_ids[owner] = part.token_ids


class Client:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.snapshots: Any = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        self.records: Any = record_pb2_grpc.RecordServiceStub(channel)

    async def begin(self, state: State) -> tuple[Any, list[int]]:
        """Open a Write; (call, needed pages)."""
        call = self.snapshots.Write()
        await call.write(snapshot_pb2.WriteRequest(header=state.header()))
        return call, list((await call.read()).need.pages)

    async def finish(self, call: Any, chunks: Iterator[snapshot_pb2.Chunk]) -> snapshot_pb2.WriteResult:
        for part in chunks:
            await call.write(snapshot_pb2.WriteRequest(chunk=part))
        await call.write(snapshot_pb2.WriteRequest(commit=snapshot_pb2.Commit()))
        response = await call.read()
        await call.done_writing()
        return response.result

    async def write(self, state: State) -> snapshot_pb2.WriteResult:
        call, needed = await self.begin(state)
        return await self.finish(call, state.chunks(needed))

    async def match(self, state: State, **changes: Any) -> snapshot_pb2.MatchResponse:
        """Match a prompt that is exactly the state's tokens."""
        tail = snapshot_pb2.TailQuery(first_page=0, token_ids=state.token_ids)
        request: dict[str, Any] = {"namespace": state.namespace, "page_keys": state.page_keys, "tail": tail} | changes
        return await self.snapshots.Match(snapshot_pb2.MatchRequest(**request))

    async def read(self, state: State, *, tail: bool = True, order: Any = 2, lease_id: str = "") -> Restored:
        request = snapshot_pb2.ReadRequest(
            namespace=state.namespace,
            lease_id=lease_id,
            page_keys=state.page_keys,
            manifest_id=state.manifest_id if tail else None,
            layer_order=order,
        )
        restored = Restored()
        async for response in self.snapshots.Read(request):
            for part in response.chunks:
                restored.add(part, part.data)
            if response.HasField("skipped"):
                restored.skipped.append((response.skipped.first_page, response.skipped.reason))
        return restored

    async def stats(self, **request: Any) -> snapshot_pb2.StatsResponse:
        return await self.snapshots.Stats(snapshot_pb2.StatsRequest(**request))

    async def lease(self, **request: Any) -> int:
        return (await self.snapshots.Lease(snapshot_pb2.LeaseRequest(**request))).remaining_ms

    async def delete(self, **request: Any) -> snapshot_pb2.DeleteResponse:
        return await self.snapshots.Delete(snapshot_pb2.DeleteRequest(**request))

    async def full_hit(self, state: State) -> bool:
        """Whether the store gives back every byte of a state."""
        found = await self.match(state)
        if found.boundary.tokens != state.num_tokens and (
            state.tail_ids or found.pages_present * 256 < state.num_tokens
        ):
            return False
        restored = await self.read(state, tail=bool(state.tail_ids), lease_id=found.lease_id)
        await self.lease(lease_id=found.lease_id, release=True)
        return restored.channels == expected(state) and not restored.skipped


def expected(state: State) -> dict[tuple[bytes, int, int], bytes]:
    """Everything a whole Read of a state gives."""
    keys = [*state.page_keys, *([b"tail"] if state.tail_ids else [])]
    found = {
        (key, layer, channel): state.channel(page, layer, channel)
        for page, key in enumerate(keys)
        for layer in range(state.layers)
        for channel in range(2)
    }
    return found | ({(b"boundary", 0, 0): state.boundary} if state.boundary else {})


@asynccontextmanager
async def serving(data_dir: Path, **settings: Any) -> AsyncGenerator[Client]:
    """A real server on a real database."""
    server = rpc.new_server()
    chosen: dict[str, Any] = {"data_dir": data_dir, "disk_reserve_bytes": 0} | settings
    config = Config(**chosen)
    async with build(config, server):
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
            yield Client(channel)
        await server.stop(1)
