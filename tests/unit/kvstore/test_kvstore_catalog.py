from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import NAMESPACE, manifest, name, page, superseded

from services.kvstore.catalog import Catalog, shorten
from services.kvstore.eviction import choose_victims
from services.kvstore.leases import LeaseTable, Pin, Pins
from services.kvstore.state import BlobId, Manifest, ManifestId, PageKey


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


def victims(catalog: Catalog, pins: Pins, bytes_to_free: int) -> list[str] | None:
    chosen = choose_victims(catalog, pins, bytes_to_free)
    return None if chosen is None else [found.manifest_id.decode().strip(".") for found in chosen]


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


def test_superseded_goes_before_heads_then_the_least_recently_used() -> None:
    catalog = Catalog()
    put(catalog, manifest("a", "x"), superseded(manifest("b", "x")), manifest("c", "y"), superseded(manifest("d", "z")))
    catalog.touch_manifest(NAMESPACE, ManifestId(name("a")))
    catalog.touch_manifest(NAMESPACE, ManifestId(name("b")))
    assert victims(catalog, Pins(), catalog.num_bytes) == ["d", "b", "c", "a"]
    assert victims(catalog, Pins(), 1) == ["d"]
    assert victims(catalog, Pins(), catalog.num_bytes + 1) is None


def test_shared_pages_count_as_freed_only_with_their_last_manifest() -> None:
    catalog = Catalog()
    put(catalog, manifest("one", "x"), manifest("two", "x"))
    alone = catalog.count_bytes(NAMESPACE) - catalog.page_entry(NAMESPACE, key("x")).num_bytes
    assert victims(catalog, Pins(), alone // 2 + 1) == ["one", "two"]


def test_pinned_state_stays_and_so_does_the_last_name_of_a_pinned_page() -> None:
    catalog, pins = Catalog(), Pins()
    put(catalog, manifest("one", "ab"), manifest("two", "ac"), manifest("three", "d"))
    pins.pin(Pin(NAMESPACE, (key("a"),), ManifestId(name("three"))))
    assert victims(catalog, pins, 1) == ["one"]
    assert victims(catalog, pins, catalog.num_bytes) is None
    pins.unpin(Pin(NAMESPACE, (key("a"),), ManifestId(name("three"))))
    assert pins.is_empty
    assert victims(catalog, pins, catalog.num_bytes) == ["one", "two", "three"]


def test_touching_a_shared_page_keeps_one_manifest_young() -> None:
    catalog = Catalog()
    put(catalog, manifest("old", "ab"), manifest("new", "ac"), manifest("other", "d"))
    catalog.touch_page(NAMESPACE, key("a"))
    assert victims(catalog, Pins(), catalog.num_bytes) == ["old", "other", "new"]


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
    for step in range(20):
        pages = "".join(rng.sample("abcdef", rng.randrange(1, 5)))
        found = manifest(f"m{rng.randrange(6)}", pages, rng.choice((b"", b"\1\0\0\0")))
        put(catalog, found if rng.random() < 0.5 else superseded(found))
        if step % 4 == 3:
            pin = Pin(NAMESPACE, found.page_keys, found.manifest_id)
            pins.pin(pin)
            chosen = choose_victims(catalog, pins, rng.randrange(1, 4_000)) or ()
            before = catalog.num_bytes
            change = catalog.plan(NAMESPACE, {victim.manifest_id: None for victim in chosen})
            catalog.apply(change)
            catalog.check_integrity()
            assert catalog.num_bytes <= before
            assert catalog.manifest(NAMESPACE, found.manifest_id) is not None
            pins.unpin(pin)
