"""SnapshotService and RecordService over real gRPC on a real database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fencepost.kvstore.v1 import record_pb2, snapshot_pb2
from kvstore_client import NAMESPACE, Client, State, expected, ids, serving, state

from services import rpc
from services.kvstore.errors import DataDirectoryError

_RESPONSE, _REPLAY = record_pb2.RECORD_KIND_RESPONSE, record_pb2.RECORD_KIND_REPLAY


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(tmp_path / "kv") as found:
        yield found


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)


async def test_state_comes_back_byte_for_byte_with_its_tail_and_boundary(client: Client) -> None:
    written = state(600, boundary=b"logits")
    result = await client.write(written)
    assert result.stored
    assert result.stored_bytes == (await client.stats()).bytes
    found = await client.match(written)
    assert found.pages_present == 2
    assert found.page_bytes == 2 * 4 * 150
    assert found.boundary.tokens == 600
    assert found.boundary.manifest_id == written.manifest_id
    assert found.boundary.tail_token_ids == written.tail_ids
    assert found.boundary.bytes == 4 * 150 + len(b"logits")
    assert found.lease_id
    restored = await client.read(written, lease_id=found.lease_id)
    assert restored.channels == expected(written)
    assert not restored.skipped
    keys = written.page_keys
    assert restored.token_ids == {keys[0]: written.page_ids(0), keys[1]: written.page_ids(1), b"tail": written.tail_ids}


async def test_layer_major_sends_a_layer_of_everything_before_the_next(client: Client) -> None:
    written = state(600)
    await client.write(written)
    restored = await client.read(written, order=1)
    assert restored.channels == expected(written)
    layers = [layer for _, layer in restored.order]
    assert layers == sorted(layers)
    assert {owner for owner, layer in restored.order if layer == 0} == {*written.page_keys, b"tail"}


async def test_second_turn_and_second_conversation_write_only_their_own_pages(client: Client) -> None:
    first = state(600)
    second = first.then(300, 1)
    other = replace(state(0), token_ids=first.token_ids[: 512 * 4] + ids(100, 2), manifest_id=b"o" * 16)
    await client.write(first)
    before = (await client.stats()).bytes
    _, needed = await client.begin(second)
    assert needed == [2]
    assert (await client.write(second)).deduplicated_pages == 2
    result = await client.write(other)
    assert (result.stored, result.deduplicated_pages) == (True, 2)
    stats = await client.stats()
    assert (stats.pages, stats.manifests) == (3, 3)
    assert stats.bytes - before > result.stored_bytes
    for written in (first, second, other):
        assert await client.full_hit(written)


async def test_longest_tail_that_the_prompt_starts_with_wins(client: Client) -> None:
    base = ids(256, 0)
    tails = {name: base + ids(count, 7) for name, count in ((b"a", 10), (b"b", 90), (b"c", 200))}
    for name, token_ids in tails.items():
        await client.write(State(token_ids, name * 16))
    prompt = State(base + ids(150, 7), b"p" * 16)
    assert (await client.match(prompt)).boundary.manifest_id == b"b" * 16
    forked = State(base + ids(50, 7) + ids(100, 8), b"p" * 16)
    assert (await client.match(forked)).boundary.manifest_id == b"a" * 16
    other = await client.match(State(base + ids(100, 9), b"p" * 16))
    assert (other.pages_present, other.HasField("boundary")) == (1, False)


async def test_tail_is_found_behind_no_page_and_from_a_later_first_page(client: Client) -> None:
    short, long = state(40, 3), state(600, 4)
    await client.write(short)
    await client.write(long)
    assert (await client.match(short)).boundary.tokens == 40
    tail = snapshot_pb2.TailQuery(first_page=1, token_ids=long.token_ids[256 * 4 :])
    assert (await client.match(long, tail=tail)).boundary.tokens == 600
    tail = snapshot_pb2.TailQuery(first_page=3, token_ids=b"")
    assert not (await client.match(long, tail=tail)).HasField("boundary")
    request = snapshot_pb2.MatchRequest(namespace=NAMESPACE, page_keys=long.page_keys)
    assert not (await client.snapshots.Match(request)).HasField("boundary")


async def test_tail_never_reaches_over_an_extra(client: Client) -> None:
    written = state(300)
    await client.write(written)
    inside = [snapshot_pb2.Extra(position=280, digest=b"d" * 16)]
    behind = [snapshot_pb2.Extra(position=300, digest=b"d" * 16)]
    assert not (await client.match(written, extras=inside)).HasField("boundary")
    assert (await client.match(written, extras=behind)).boundary.tokens == 300


async def test_nothing_crosses_namespaces(client: Client) -> None:
    written = state(300)
    await client.write(written)
    found = await client.match(written, namespace=b"x" * 32)
    assert (found.pages_present, found.lease_id, found.HasField("boundary")) == (0, "", False)
    stats = await client.stats()
    assert (stats.hits, stats.misses) == (0, 1)
    assert (await client.stats(namespace=b"x" * 32)).bytes == 0


async def test_write_that_breaks_off_leaves_nothing(client: Client) -> None:
    written = state(600)
    call, needed = await client.begin(written)
    for part in list(written.chunks(needed))[:-2]:
        await call.write(snapshot_pb2.WriteRequest(chunk=part))
    call.cancel()

    async def is_dropped() -> bool:
        return (await client.stats()).dropped_writes == 1

    await _until(is_dropped)
    stats = await client.stats()
    assert (stats.bytes, stats.pages, stats.manifests) == (0, 0, 0)
    assert (await client.match(written)).pages_present == 0
    assert (await client.write(written)).stored
    assert await client.full_hit(written)


async def test_two_writers_of_one_page_store_it_once(client: Client) -> None:
    one, two = state(300), state(300, tenant="other")
    calls = [(written, *(await client.begin(written))) for written in (one, two)]
    assert [needed for _, _, needed in calls] == [[0], [0]]
    results = await asyncio.gather(*(client.finish(call, item.chunks(needed)) for item, call, needed in calls))
    assert all(result.stored for result in results)
    assert sorted(result.deduplicated_pages for result in results) == [0, 1]
    stats = await client.stats()
    assert (stats.pages, stats.manifests) == (1, 2)
    assert stats.bytes == sum(result.stored_bytes for result in results)
    assert await client.full_hit(one)
    assert await client.full_hit(two)


async def test_racing_writer_with_other_sizes_under_one_key_is_refused(client: Client) -> None:
    one, two = state(256), state(256, channel_bytes=160, tenant="other")
    (first, needed), (second, _) = await client.begin(one), await client.begin(two)
    assert (await client.finish(first, one.chunks(needed))).stored
    with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION"):
        await client.finish(second, two.chunks(needed))
    assert await client.full_hit(one)


async def test_page_neither_present_nor_sent_drops_the_write(client: Client) -> None:
    written = state(600)
    call, _ = await client.begin(written)
    result = await client.finish(call, written.chunks([0]))
    assert (result.stored, result.dropped_reason) == (False, "page 1 is neither present nor sent")
    assert (await client.match(written)).pages_present == 0


async def test_same_manifest_id_replaces_and_frees_what_only_it_named(client: Client) -> None:
    old = state(600, 1)
    new = replace(state(300, 2), manifest_id=old.manifest_id)
    await client.write(old)
    result = await client.write(new)
    stats = await client.stats()
    assert (stats.manifests, stats.pages, stats.bytes) == (1, 1, result.stored_bytes)
    assert await client.full_hit(new)
    assert (await client.match(old)).pages_present == 0


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"namespace": b"short"}, "INVALID_ARGUMENT", "namespace"),
        ({"manifest_id": b"short"}, "INVALID_ARGUMENT", "manifest_id"),
        ({"page_keys": [b"short"]}, "INVALID_ARGUMENT", "page_keys"),
        ({"token_count": 3}, "INVALID_ARGUMENT", "token_count"),
        ({"tail_token_ids": b"123"}, "INVALID_ARGUMENT", "tail_token_ids"),
        ({"tenant": ""}, "INVALID_ARGUMENT", "tenant"),
        ({"page_tokens": 128}, "FAILED_PRECONDITION", "page_tokens"),
    ],
)
async def test_bad_header_is_refused_by_name(client: Client, change: dict[str, Any], code: str, field: str) -> None:
    header: Any = state(600).header()
    for name, value in change.items():
        header.ClearField(name)
        header.MergeFrom(snapshot_pb2.WriteHeader(**{name: value}))
    call = client.snapshots.Write()
    await call.write(snapshot_pb2.WriteRequest(header=header))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code().name == code
    assert field in rpc.failure_of(caught.value).message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"crc32c": 1}, "crc32c"),
        ({"data": b"other"}, "crc32c"),
        ({"page_key": b"k" * 16}, "page_key"),
        ({"offset": 7}, "offset"),
        ({"layer": 1}, "offset"),
        ({"token_ids": b"1234"}, "token_ids"),
        ({"total": 3}, "offset"),
    ],
)
async def test_bad_chunk_is_refused_by_name(client: Client, change: dict[str, Any], field: str) -> None:
    written = state(256)
    call, needed = await client.begin(written)
    part = next(written.chunks(needed))
    part.MergeFrom(snapshot_pb2.Chunk(**change))
    await call.write(snapshot_pb2.WriteRequest(chunk=part))
    with pytest.raises(grpc.aio.AioRpcError, match=field) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_incomplete_page_is_refused_at_commit(client: Client) -> None:
    written = state(256)
    call, needed = await client.begin(written)
    with pytest.raises(grpc.aio.AioRpcError, match="page 0 is not whole"):
        await client.finish(call, iter(list(written.chunks(needed))[:-1]))


async def test_over_the_bound_of_writers_the_client_is_told_when_to_retry(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv", max_writers=1) as client:
        call, needed = await client.begin(state(256))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.snapshots.Write(iter([snapshot_pb2.WriteRequest(header=state(40).header())])).read()
        failure = rpc.failure_of(caught.value)
        assert (failure.code.name, failure.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_WRITERS")
        assert failure.retry_after_s == 1.0
        assert (await client.finish(call, state(256).chunks(needed))).stored
        assert (await client.write(state(40))).stored


async def test_silent_writer_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv", write_idle_s=0.1) as client:
        call, _ = await client.begin(state(256))
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await call.read()


async def test_superseded_states_go_first_and_shared_pages_stay(tmp_path: Path) -> None:
    first = state(600, 1, channel_bytes=3_000)
    second = first.then(300, 2)
    async with serving(tmp_path / "probe") as client:
        await client.write(first)
        await client.write(second)
        cap = (await client.stats()).bytes + 3_000
    async with serving(tmp_path / "kv", ssd_bytes=cap) as client:
        await client.write(first)
        await client.write(second)
        await client.write(state(200, 3, channel_bytes=2_000))
        assert (await client.stats()).evictions == 1
        assert await client.full_hit(second)
        assert (await client.match(first)).boundary.tokens == 0
        assert (await client.match(first)).pages_present == 2


async def test_least_recently_used_goes_first_and_the_cap_holds(tmp_path: Path) -> None:
    states = [state(511, seed, channel_bytes=1_000) for seed in range(8)]
    async with serving(tmp_path / "probe") as client:
        await client.write(states[0])
        size = (await client.stats()).bytes
    async with serving(tmp_path / "kv", ssd_bytes=int(3.5 * size)) as client:
        for written in states[:3]:
            await client.write(written)
        assert await client.full_hit(states[0])
        await client.write(states[3])
        assert not await client.full_hit(states[1])
        assert await client.full_hit(states[0])
        assert await client.full_hit(states[3])
        for written in states[4:]:
            assert (await client.write(written)).stored
            assert (await client.stats()).bytes <= 3.5 * size


async def test_leased_state_is_never_evicted_and_the_writer_is_told(tmp_path: Path) -> None:
    one, two = state(300, 1, channel_bytes=1_000), state(300, 2, channel_bytes=1_000)
    async with serving(tmp_path / "probe") as client:
        await client.write(one)
        size = (await client.stats()).bytes
    async with serving(tmp_path / "kv", ssd_bytes=int(1.5 * size)) as client:
        await client.write(one)
        lease_id = (await client.match(one)).lease_id
        assert (await client.stats()).leases == 1
        call, needed = await client.begin(two)
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await client.finish(call, two.chunks(needed))
        assert await client.full_hit(one)
        assert await client.lease(lease_id=lease_id, extend_ms=60_000) == 60_000
        assert await client.lease(lease_id=lease_id, release=True) == 0
        assert await client.lease(lease_id=lease_id, release=True) == 0
        assert await client.lease(lease_id="unknown", extend_ms=1_000) == 0
        assert (await client.stats()).leases == 0
        assert (await client.write(two)).stored
        assert await client.full_hit(two)
        assert not await client.full_hit(one)


async def test_lease_expires_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv", lease_s=0.1) as client:
        await client.write(state(300))
        found = await client.match(state(300))
        assert found.lease_ms == 100

        async def is_expired() -> bool:
            return (await client.stats()).leases == 0

        await _until(is_expired)
        assert (await client.read(state(300), lease_id=found.lease_id)).channels == expected(state(300))


async def test_state_larger_than_the_cap_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv", ssd_bytes=20_000) as client:
        await client.write(state(300, 1))
        big = state(300, 2, channel_bytes=10_000)
        call, needed = await client.begin(big)
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await client.finish(call, big.chunks(needed))
        assert await client.full_hit(state(300, 1))


async def test_low_disk_stops_writes_never_reads(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv") as client:
        await client.write(state(300, 1))
    async with serving(tmp_path / "kv", disk_reserve_bytes=2**60) as client:
        call, needed = await client.begin(state(300, 2))
        with pytest.raises(grpc.aio.AioRpcError, match="disk"):
            await client.finish(call, state(300, 2).chunks(needed))
        with pytest.raises(grpc.aio.AioRpcError, match="disk"):
            await client.records.Put(record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=b"k", value=b"v"))
        assert await client.full_hit(state(300, 1))


async def test_delete_takes_one_manifest_a_namespace_or_a_tenant(client: Client) -> None:
    first = state(600, 1)
    second = first.then(300, 2)
    other = state(300, 3, tenant="other", namespace=b"m" * 32)
    for written in (first, second, other):
        await client.write(written)
    put = record_pb2.PutRequest(kind=_RESPONSE, tenant="other", key=b"k", value=b"v")
    await client.records.Put(put)
    which = snapshot_pb2.ManifestId(namespace=NAMESPACE, manifest_id=second.manifest_id)
    gone = await client.delete(manifest=which)
    assert (gone.manifests, gone.pages, gone.records) == (1, 1, 0)
    assert await client.full_hit(first)
    before = (await client.stats()).bytes
    gone = await client.delete(tenant="other")
    assert (gone.manifests, gone.pages, gone.records) == (1, 1, 1)
    assert (await client.stats()).bytes == before - gone.bytes
    assert (await client.delete(namespace=NAMESPACE)).manifests == 1
    assert (await client.delete(namespace=NAMESPACE)).manifests == 0
    assert (await client.stats()).bytes == 0


async def test_write_of_a_deleted_tenant_is_dropped_at_its_commit(client: Client) -> None:
    written = state(300)
    call, needed = await client.begin(written)
    await client.delete(tenant="tenant")
    result = await client.finish(call, written.chunks(needed))
    assert (result.stored, result.may_repeat) == (False, False)
    assert result.dropped_reason == "deleted while it was written"
    assert (await client.stats()).bytes == 0


async def test_a_write_whose_shared_pages_are_deleted_is_dropped_and_whole_when_sent_anew(client: Client) -> None:
    first = state(600, 1)
    second = first.then(300, 2)
    await client.write(first)
    call, needed = await client.begin(second)
    assert needed == [2]
    await client.delete(manifest=snapshot_pb2.ManifestId(namespace=NAMESPACE, manifest_id=first.manifest_id))
    result = await client.finish(call, second.chunks(needed))
    assert (result.stored, result.may_repeat) == (False, True)
    assert result.dropped_reason == "page 0 was deleted while this was written"
    assert (await client.write(second)).stored
    assert await client.full_hit(second)


async def test_restart_keeps_every_state_and_the_byte_count(tmp_path: Path) -> None:
    first = state(600, 1, boundary=b"record")
    second = first.then(300, 2)
    async with serving(tmp_path / "kv") as client:
        await client.write(first)
        await client.write(second)
        await client.write(state(40, 3))
        await client.records.Put(record_pb2.PutRequest(kind=_REPLAY, tenant="t", key=b"k", value=b"v"))
        before = await client.stats()
    async with serving(tmp_path / "kv") as client:
        after = await client.stats()
        assert (after.bytes, after.pages, after.manifests, after.records) == (before.bytes, 3, 3, 1)
        assert after.orphan_pages == 0
        for written in (first, second, state(40, 3)):
            assert await client.full_hit(written)


async def test_directory_in_use_or_of_another_version_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "kv"):
        with pytest.raises(DataDirectoryError, match=r"kv is in use"):
            async with serving(tmp_path / "kv"):
                pass
    (tmp_path / "kv" / "FORMAT").write_text("fencepost kvstore format 99\n")
    with pytest.raises(DataDirectoryError, match="another version"):
        async with serving(tmp_path / "kv"):
            pass
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notes.txt").write_text("mine")
    with pytest.raises(DataDirectoryError, match="not a data directory"):
        async with serving(tmp_path / "home"):
            pass


async def test_records_are_put_read_listed_and_deleted(client: Client) -> None:
    records = client.records
    for key in (b"a1", b"a2", b"a3", b"b1"):
        await records.Put(record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=key, value=b"v" + key, ttl_ms=60_000))
    got = await records.Get(record_pb2.GetRequest(kind=_RESPONSE, tenant="t", key=b"a1"))
    assert got.value == b"va1"
    assert 0 < got.remaining_ms <= 60_000
    batch = await records.BatchGet(record_pb2.BatchGetRequest(kind=_RESPONSE, tenant="t", keys=[b"b1", b"no", b"a1"]))
    assert [record.value for record in batch.records] == [b"vb1", b"va1"]
    page = await records.Scan(record_pb2.ScanRequest(kind=_RESPONSE, tenant="t", prefix=b"a", limit=2))
    assert ([record.key for record in page.records], page.has_more) == ([b"a1", b"a2"], True)
    page = await records.Scan(record_pb2.ScanRequest(kind=_RESPONSE, tenant="t", prefix=b"a", limit=2, after=b"a2"))
    assert ([record.key for record in page.records], page.has_more) == ([b"a3"], False)
    delete = record_pb2.RecordServiceDeleteRequest(kind=_RESPONSE, tenant="t", key=b"a1")
    assert (await records.Delete(delete)).deleted
    assert not (await records.Delete(delete)).deleted
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await records.Get(record_pb2.GetRequest(kind=_RESPONSE, tenant="t", key=b"a1"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert (await client.stats()).records == 3


async def test_if_absent_lets_exactly_one_of_many_win(client: Client) -> None:
    put = [
        record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=b"k", value=bytes([i]), if_absent=True) for i in range(10)
    ]
    results = await asyncio.gather(*map(client.records.Put, put), return_exceptions=True)
    failed = [result for result in results if isinstance(result, grpc.aio.AioRpcError)]
    assert len(failed) == 9
    assert {error.code() for error in failed} == {grpc.StatusCode.ALREADY_EXISTS}
    assert (await client.stats()).records == 1


@pytest.mark.parametrize(
    "request_",
    [
        record_pb2.PutRequest(tenant="t", key=b"k"),
        record_pb2.PutRequest(kind=_RESPONSE, key=b"k"),
        record_pb2.PutRequest(kind=_RESPONSE, tenant="t"),
        record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=b"k" * 513),
        record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=b"k", ttl_ms=0),
        record_pb2.PutRequest(kind=_RESPONSE, tenant="t", key=b"k", value=bytes(32 * 2**20 + 1)),
    ],
    ids=["kind", "tenant", "key", "long key", "ttl", "value"],
)
async def test_bad_record_is_refused(client: Client, request_: record_pb2.PutRequest) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.records.Put(request_)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_chunk_of_a_page_that_is_there_already_is_refused(client: Client) -> None:
    written = state(256)
    await client.write(written)
    call, needed = await client.begin(replace(written, manifest_id=b"z" * 16))
    assert needed == []
    await call.write(snapshot_pb2.WriteRequest(chunk=next(written.chunks([0]))))
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
        await call.read()


async def test_exact_repeat_finds_the_page_it_ends_in(client: Client) -> None:
    written = state(700)
    await client.write(written)
    # A prompt that ends inside the second page: its key is not among the prompt's.
    ids_ = written.token_ids[: 400 * 4]
    tail = snapshot_pb2.TailQuery(first_page=0, token_ids=ids_)
    found = await client.match(written, page_keys=written.page_keys[:1], tail=tail)
    assert (found.pages_present, found.HasField("boundary")) == (1, False)
    assert (found.partial.page_key, found.partial.tokens) == (written.page_keys[1], 400 - 256)
    assert found.partial.token_ids == written.page_ids(1)
    restored = await client.read(written, tail=False, lease_id=found.lease_id)
    assert restored.token_ids[written.page_keys[1]] == written.page_ids(1)


async def test_prompt_that_forks_inside_a_tail_finds_the_tokens_before(client: Client) -> None:
    written = state(300)
    await client.write(written)
    prompt = written.token_ids[: 280 * 4] + ids(50, 99)
    tail = snapshot_pb2.TailQuery(first_page=0, token_ids=prompt)
    found = await client.match(written, tail=tail)
    assert not found.HasField("boundary")
    assert (found.partial.manifest_id, found.partial.tokens) == (written.manifest_id, 24)
    assert found.partial.token_ids == written.tail_ids
    tail = snapshot_pb2.TailQuery(first_page=0, token_ids=written.token_ids[: 256 * 4] + ids(50, 99))
    assert not (await client.match(written, tail=tail)).HasField("partial")


async def test_partial_is_told_only_where_it_reaches_beyond_the_boundary(client: Client) -> None:
    short, long = state(280), state(280).then(100, 5)
    await client.write(short)
    await client.write(long)
    tail = snapshot_pb2.TailQuery(first_page=0, token_ids=long.token_ids[: 300 * 4])
    found = await client.match(long, page_keys=long.page_keys, tail=tail)
    assert (found.boundary.tokens, found.partial.tokens) == (280, 300 - 256)
    exact = await client.match(short)
    assert (exact.boundary.tokens, exact.HasField("partial")) == (280, False)


async def test_layers_are_read_alone(client: Client) -> None:
    written = state(600)
    await client.write(written)
    request = snapshot_pb2.ReadRequest(
        namespace=written.namespace,
        page_keys=written.page_keys,
        layer_order=snapshot_pb2.LAYER_ORDER_LAYER_MAJOR,
        layers=snapshot_pb2.LayerRange(first=1, count=1),
    )
    chunks = [chunk async for response in client.snapshots.Read(request) for chunk in response.chunks]
    assert {(chunk.page_key, chunk.layer) for chunk in chunks} == {(key, 1) for key in written.page_keys}
    request.layers.count = 0
    with pytest.raises(grpc.aio.AioRpcError, match=r"layers\.count"):
        await client.snapshots.Read(request).read()


async def test_page_behind_another_page_than_stored_is_refused(client: Client) -> None:
    written = state(600)
    await client.write(written)
    header = written.header()
    header.page_keys[:] = header.page_keys[::-1]
    call = client.snapshots.Write()
    await call.write(snapshot_pb2.WriteRequest(header=header))
    with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION"):
        await call.read()
    assert await client.full_hit(written)
