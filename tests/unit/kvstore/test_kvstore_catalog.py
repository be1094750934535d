from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import NAMESPACE, manifest, name, page, superseded

from services.kvstore.catalog import Catalog, shorten
from services.kvstore.eviction import choose_cuts
from services.kvstore.leases import LeaseTable, Pin, Pins
from services.kvstore.state import BlobId, Manifest, ManifestId, Namespace, PageKey


def put(catalog: Catalog, *manifests: Manifest) -> None:
    for found in manifests:
        new = [
            page(key.decode().strip("."), index)
            for index, key in enumerate(found.page_keys)
            if catalog.page(found.namespace, key) is None
        ]
        catalog.apply(catalog.plan(found.namespace, {found.manifest_id: found}, new))
        catalog.check_integrity()


def key(text: str) -> PageKey:
    return PageKey(name(text))


def put_at(catalog: Catalog, now_ms: int, found: Manifest) -> None:
    put(catalog, replace(found, created_ms=now_ms))


def cuts(
    catalog: Catalog, bytes_to_free: int, pins: Pins | None = None, unwanted: Namespace | None = None
) -> dict[str, str | None] | None:
    """What becomes of manifests by name: the letters of the pages they keep, or None."""
    chosen = choose_cuts(catalog, pins or Pins(), bytes_to_free, 1_000_000, lambda namespace: namespace != unwanted)
    if chosen is None:
        return None
    return {
        manifest_id.decode().strip("."): None if left is None else b"".join(left.page_keys).decode().replace(".", "")
        for manifests in chosen.values()
        for manifest_id, left in manifests.items()
    }


TAIL = b"\1\0\0\0"


def test_page_lives_while_a_manifest_names_it() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "abc"), manifest("two", "abd"))
    change = catalog.plan(NAMESPACE, {ManifestId(name("one")): None})
    assert change.drop_pages == (key("c"),)
    assert change.garbage == (BlobId(name("blob c")),)
    catalog.apply(change)
    catalog.check_integrity()
    assert [found.key for found in catalog.leading_pages(NAMESPACE, [key("a"), key("b"), key("c")])] == [
        key("a"),
        key("b"),
    ]


def test_replacing_a_manifest_frees_its_old_tail_and_pages() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "ab", b"\1\0\0\0"))
    change = catalog.plan(NAMESPACE, {ManifestId(name("one")): manifest("one", "a")})
    assert change.drop_pages == (key("b"),)
    assert set(change.garbage) == {BlobId(name("tail one")), BlobId(name("blob b"))}
    catalog.apply(change)
    catalog.check_integrity()


def test_damage_leaves_the_pages_before_it() -> None:
    found = manifest("one", "abc", b"\1\0\0\0")
    left = shorten(found, 2, 256)
    assert left is not None
    assert (left.page_keys, left.token_count, left.tail, left.is_head) == (found.page_keys[:2], 512, None, False)
    assert shorten(found, 0, 256) is None


def test_superseded_tails_go_first_then_the_least_recently_used_leaf() -> None:
    catalog = Catalog()
    put_at(catalog, 100, manifest("old", "x", TAIL))
    put_at(catalog, 300, superseded(manifest("done", "y", TAIL)))
    put_at(catalog, 200, manifest("new", "yz", TAIL))
    assert cuts(catalog, 1) == {"done": None}
    tail = catalog.count_bytes(NAMESPACE) - sum(catalog.page_entry(NAMESPACE, key(k)).num_bytes for k in "xyz")
    assert cuts(catalog, tail // 3 + 1) == {"done": None, "old": "x"}
    assert cuts(catalog, catalog.num_bytes) == {"old": None, "done": None, "new": None}
    assert cuts(catalog, catalog.num_bytes + 1) is None


def test_a_conversation_loses_its_end_first() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "abcd", TAIL))
    page_bytes = catalog.page_entry(NAMESPACE, key("a")).num_bytes
    assert cuts(catalog, 1) == {"one": "abcd"}
    assert cuts(catalog, 2 * page_bytes) == {"one": "ab"}
    assert cuts(catalog, catalog.num_bytes) == {"one": None}


def test_the_deeper_of_two_equally_old_pages_stays() -> None:
    catalog = Catalog()
    put(catalog, manifest("deep", "abcdefgh"), manifest("flat", "x"))
    assert cuts(catalog, 1) == {"flat": None}


def test_a_shared_prefix_outlives_the_tails_of_all_who_share_it() -> None:
    catalog = Catalog()
    for at, letter in enumerate("bcd"):
        put_at(catalog, at, manifest(letter, "a" + letter, TAIL))
        catalog.touch(NAMESPACE, [key("a")], None, at)
    put_at(catalog, 900_000, manifest("other", "xy", TAIL))
    page_bytes = catalog.page_entry(NAMESPACE, key("a")).num_bytes
    chosen = cuts(catalog, 3 * page_bytes)
    assert chosen is not None
    assert chosen["other"] is not None if "other" in chosen else True
    assert "a" in chosen.values()


def test_use_keeps_a_page_beyond_one_used_once() -> None:
    catalog = Catalog()
    put_at(catalog, 500, manifest("often", "a"))
    put_at(catalog, 500, manifest("once", "b"))
    for _ in range(3):
        catalog.touch(NAMESPACE, [key("a")], None, 500)
    assert cuts(catalog, 1) == {"once": None}


def test_state_of_an_unused_layout_goes_before_all_other() -> None:
    catalog, foreign = Catalog(), Namespace(bytes(32))
    put_at(catalog, 1, manifest("old", "a", TAIL))
    put_at(catalog, 900_000, manifest("foreign", "b", TAIL, foreign))
    assert cuts(catalog, 1, unwanted=foreign) == {"foreign": "b"}
    assert cuts(catalog, catalog.count_bytes(foreign), unwanted=foreign) == {"foreign": None}


def test_pages_that_several_name_keep_one_name() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "ab", TAIL), manifest("two", "ab", TAIL))
    tails = catalog.num_bytes - 2 * catalog.page_entry(NAMESPACE, key("a")).num_bytes
    chosen = cuts(catalog, tails // 2)
    assert chosen is not None
    assert sorted(chosen.values(), key=str) == [None, "ab"]


def test_pinned_state_stays_and_so_does_all_in_front_of_it() -> None:
    catalog, pins = Catalog(), Pins()
    put(catalog, manifest("one", "ab"), manifest("two", "ac"), manifest("three", "d", TAIL))
    pins.pin(Pin(NAMESPACE, (key("a"), key("b")), None))
    pins.pin(Pin(NAMESPACE, (key("d"),), ManifestId(name("three"))))
    assert cuts(catalog, 1, pins) == {"two": None}
    assert cuts(catalog, catalog.num_bytes, pins) is None


def test_touching_marks_what_is_there() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "ab"))
    catalog.touch(NAMESPACE, [key("a"), key("zzz")], ManifestId(name("two")), 2e12)
    assert catalog.page_entry(NAMESPACE, key("a")).use.last_ms == 2e12
    assert catalog.page_entry(NAMESPACE, key("b")).use.last_ms == 1_700_000_000_000
    catalog.check_integrity()


def test_page_behind_another_page_than_stored_is_told() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "abc"))
    assert catalog.first_misplaced(NAMESPACE, [key("a"), key("b"), key("x")]) is None
    assert catalog.first_misplaced(NAMESPACE, [key("a"), key("c")]) == 1
    assert catalog.first_misplaced(NAMESPACE, [key("b")]) == 0


def test_lease_is_released_once_and_expires() -> None:
    pins = Pins()
    leases = LeaseTable(pins)
    first = leases.acquire(Pin(NAMESPACE, (key("a"),)), 0.0, 10.0)
    second = leases.acquire(Pin(NAMESPACE, (key("a"),)), 0.0, 10.0)
    assert first != second
    assert leases.count(NAMESPACE) == 2
    leases.release(first)
    leases.release(first)
    assert pins.holds_page(NAMESPACE, key("a"))
    assert leases.extend(second, 9.0, 5.0) == 5.0
    leases.expire(13.9)
    assert leases.count(None) == 1
    assert leases.extend(second, 14.0, 5.0) == 0.0
    assert pins.is_empty


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_random_histories_keep_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    catalog, pins = Catalog(), Pins()
    for step in range(24):
        # Chains of one tree: a page is named by the path to it.
        path = "".join(rng.choice("ab") for _ in range(rng.randrange(0, 5)))
        keys = tuple(key(path[: end + 1]) for end in range(len(path)))
        tail = rng.choice((b"", TAIL)) if path else TAIL
        found = manifest(f"m{rng.randrange(8)}", "", tail)
        found = replace(
            found,
            page_keys=keys,
            token_count=256 * len(path) + len(tail) // 4,
            is_head=rng.random() < 0.5,
            created_ms=step,
        )
        put(catalog, found)
        if step % 4 == 3:
            pin = Pin(NAMESPACE, found.page_keys, found.manifest_id)
            pins.pin(pin)
            wanted = rng.randrange(1, 9_000)
            chosen = choose_cuts(catalog, pins, wanted, 100, lambda namespace: True)
            before = catalog.num_bytes
            if chosen is not None:
                catalog.apply(catalog.plan(NAMESPACE, chosen.get(NAMESPACE, {})))
                assert before - catalog.num_bytes >= wanted
            catalog.check_integrity()
            assert catalog.manifest(NAMESPACE, found.manifest_id) == found
            pins.unpin(pin)
