"""How a restore is cut into reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.runtime.layout import Channel, StateLayout
from services.engine.tiles import Owner, Tile, cut, spans

LAYOUT = StateLayout(3, (Channel("key", 2, 4), Channel("value", 1, 4)), "float32")
TOKEN_BYTES = 48
"""Of one layer."""


def owners(*num_tokens: int) -> list[Owner]:
    return [Owner(b"k", None, 0, bytes(4 * count), 0, count) for count in num_tokens]


def test_without_lent_memory_one_read_brings_all():
    assert cut(LAYOUT, owners(256, 256, 7), None) == [Tile(range(3), 0, 3)]


def test_as_many_layers_as_fit_come_together():
    found = owners(256, 256)
    assert cut(LAYOUT, found, 2 * 512 * TOKEN_BYTES) == [Tile(range(2), 0, 2), Tile(range(2, 3), 0, 2)]
    assert cut(LAYOUT, found, 10 * 512 * TOKEN_BYTES) == [Tile(range(3), 0, 2)]


def test_a_layer_that_does_not_fit_is_cut_between_owners():
    found = cut(LAYOUT, owners(256, 256, 256), 2 * 256 * TOKEN_BYTES)
    assert found[:3] == [Tile(range(1), 0, 2), Tile(range(1), 2, 3), Tile(range(1, 2), 0, 2)]
    with pytest.raises(ValueError, match="more than the 100"):
        cut(LAYOUT, owners(256), 100)


@given(st.lists(st.integers(1, 256), min_size=1, max_size=9), st.integers(256 * TOKEN_BYTES, 9 * 256 * TOKEN_BYTES))
def test_tiles_bring_every_span_once_layer_by_layer_within_their_bound(counts: list[int], max_bytes: int):
    found = owners(*counts)
    tiles = cut(LAYOUT, found, max_bytes)
    seen = [span for tile in tiles for span in spans(tile)]
    assert len(seen) == len(set(seen)) == 3 * len(counts)
    assert [span.layer for span in seen] == sorted(span.layer for span in seen)
    for tile in tiles:
        num_tokens = sum(found[span.owner].num_tokens for span in spans(tile))
        assert num_tokens * TOKEN_BYTES <= max_bytes
