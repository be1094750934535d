"""Records of this process, for a gateway without a kvstore."""

from __future__ import annotations

from services.gateway.records import MemoryRecords


async def test_what_is_put_is_found_by_its_tenant_alone() -> None:
    records = MemoryRecords(100)
    await records.put("a", "k", b"1", 60)
    assert {key: record.value for key, record in (await records.get("a", ["k", "other"])).items()} == {"k": b"1"}
    assert await records.get("b", ["k"]) == {}
    assert not await records.delete("b", "k")
    assert await records.delete("a", "k")
    assert not await records.delete("a", "k")
    assert await records.get("a", ["k"]) == {}


async def test_a_record_expires() -> None:
    records = MemoryRecords(100)
    await records.put("a", "k", b"1", 0)
    assert await records.get("a", ["k"]) == {}


async def test_the_oldest_make_room_and_a_replaced_value_counts_once() -> None:
    records = MemoryRecords(10)
    for _ in range(5):
        await records.put("a", "x", b"1234", 60)
    await records.put("a", "y", b"1234", 60)
    assert set(await records.get("a", ["x", "y"])) == {"x", "y"}
    await records.put("a", "z", b"1234", 60)
    assert set(await records.get("a", ["x", "y", "z"])) == {"y", "z"}
    await records.put("a", "big", b"12345678901", 60)
    assert await records.get("a", ["x", "y", "z", "big"]) == {}
    await records.put("a", "w", b"1234567890", 60)
    assert set(await records.get("a", ["w"])) == {"w"}
