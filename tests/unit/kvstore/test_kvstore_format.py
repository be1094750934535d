from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import NAMESPACE, manifest, name, page

from services.kvstore.errors import DamageError
from services.kvstore.format import (
    PAGE_ROW_PREFIX,
    chunk_key,
    decode_chunk,
    decode_manifest,
    decode_page,
    encode_chunk,
    encode_manifest,
    encode_page,
    manifest_bytes,
    manifest_key,
    page_bytes,
    page_row_key,
)
from services.kvstore.frame import seal
from services.kvstore.record_format import (
    Head,
    Kind,
    decode_body,
    decode_head,
    encode_body,
    encode_head,
    head_key,
    record_bytes,
    record_prefix,
)
from services.kvstore.state import Blob, BlobId, ChunkHead, ManifestId, Owner, Span, check_spans

DATA_CRC32C = 0xAED87DD1
HEAD = ChunkHead(NAMESPACE, Owner.PAGE, name("key"), 256, 256, 1, 2, 3, 4)
PARENT = ManifestId(name("parent"))
FULL = replace(
    manifest("full", "ab", b"\1\0\0\0\2\0\0\0"), parent_id=PARENT, boundary=Blob(BlobId(name("b")), (Span(0, 0, 0, 1),))
)
DECODERS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (encode_chunk(HEAD, b"\7\0\0\0", b"data", DATA_CRC32C), decode_chunk),
    (encode_page(page("a")), decode_page),
    (encode_manifest(FULL), decode_manifest),
    (encode_manifest(manifest("m", "a")), decode_manifest),
    (encode_head(Head(5, 6)), decode_head),
    (encode_body(b"key", 5, b"value"), lambda value: decode_body(b"key", value)),
]

_N = NAMESPACE.hex()


def test_golden_bytes_of_a_chunk() -> None:
    expected = (
        "46506368" "0100" "0000" "68000000"  # FPch, version 1, body of 104 bytes
        + _N + name("key").hex()
        + "01000000" "00010000" "00010000" "01000000" "02000000"  # page, tokens [256, 512), layer 1, channel 2
        + "0300000000000000" "0400000000000000" "04000000" "04000000"  # offset, total, 4 bytes of ids, 4 of data
        + "d17dd8ae"  # of the data
        + "07000000" + b"data".hex()
    )  # fmt: skip
    value = encode_chunk(HEAD, b"\7\0\0\0", b"data", DATA_CRC32C)
    assert value[:-4].hex() == expected
    assert chunk_key(BlobId(name("blob")), Span(1, 2, 3, 4)).hex() == (
        name("blob").hex() + "00000001" "00000002" "0000000000000003"
    )  # fmt: skip


def test_golden_bytes_of_a_page_row() -> None:
    only = replace(page("a", 1), blob=Blob(BlobId(name("blob")), (Span(0, 0, 0, 5),)))
    expected = (
        "46507067" "0100" "0000" "60040000"
        + _N + name("a").hex() + "00010000" "00010000" + name("a").hex() * 64
        + name("blob").hex() + "01000000" "00000000" "00000000" "0000000000000000" "05000000"
    )  # fmt: skip
    assert encode_page(only)[:-4].hex() == expected
    assert page_row_key(only.namespace, only.key) == b"P" + NAMESPACE + name("a")


def test_golden_bytes_of_a_manifest() -> None:
    expected = (
        "46506d66" "0100" "0000" "be000000"
        + _N + name("full").hex() + "01" "01" + PARENT.hex()
        + "01000000" "02020000" "0900000000000000" "0068e5cf8b010000" "06000000" "02000000" "08000000"
        + b"tenant".hex() + name("a").hex() + name("b").hex() + "0100000002000000"
        + "00"
        + "01" + name("b").hex() + "01000000" "00000000" "00000000" "0000000000000000" "01000000"
    )  # fmt: skip
    with pytest.raises(DamageError):
        decode_manifest(encode_manifest(replace(FULL, tail=None)))
    assert encode_manifest(replace(FULL, tail=None))[:-4].hex() == expected
    assert manifest_key(FULL.namespace, FULL.manifest_id) == NAMESPACE + name("full")


def test_golden_bytes_of_a_record() -> None:
    key = record_prefix(Kind.REPLAY, "ten") + b"key"
    assert key.hex() == "02" "0003" + b"tenkey".hex()  # fmt: skip
    head = "46507268" "0100" "0000" "0c000000" "0500000000000000" "06000000" "75f9551b"  # fmt: skip
    assert encode_head(Head(5, 6)).hex() == head
    body = "46507262" "0100" "0000" "16000000" "0500000000000000" "0300" "05000000" + b"keyvalue".hex()  # fmt: skip
    assert encode_body(b"key", 5, b"value")[:-4].hex() == body


def test_every_value_decodes_to_what_it_was() -> None:
    chunk = (HEAD, b"\7\0\0\0", b"data", DATA_CRC32C)
    assert decode_chunk(encode_chunk(*chunk)) == chunk
    assert decode_page(encode_page(page("a", 3))) == page("a", 3)
    assert decode_manifest(encode_manifest(FULL)) == FULL
    assert decode_manifest(encode_manifest(manifest("m", "abc"))) == manifest("m", "abc")
    assert decode_body(b"key", encode_body(b"key", 5, b"value")) == (5, b"value")


def test_sizes_are_those_of_the_encoded_rows() -> None:
    one = page("a")
    rows = len(page_row_key(one.namespace, one.key)) + len(encode_page(one))
    chunks = 0
    for span in one.blob.spans:
        ids = bytes(4 * 256) if span is one.blob.spans[0] else b""
        chunks += len(chunk_key(one.blob.blob_id, span)) + len(encode_chunk(HEAD, ids, bytes(span.length), 0))
    assert page_bytes(one) == rows + chunks
    bare = manifest("m", "abc")
    assert manifest_bytes(bare) == 48 + len(encode_manifest(bare))
    assert manifest_bytes(replace(bare, parent_id=PARENT)) == 48 + len(encode_manifest(bare)) + 16
    key = record_prefix(Kind.RESPONSE, "t") + b"k"
    rows = len(head_key(key)) + len(encode_head(Head(1, 5))) + len(key) + len(encode_body(key, 1, b"value"))
    assert record_bytes(key, 5) == rows
    assert head_key(key)[:1] != PAGE_ROW_PREFIX


@pytest.mark.parametrize(("value", "decode"), DECODERS)
def test_every_truncation_and_every_flip_is_found(value: bytes, decode: Callable[[bytes], object]) -> None:
    for length in range(len(value)):
        with pytest.raises(DamageError):
            decode(value[:length])
    for at in range(len(value)):
        flipped = bytearray(value)
        flipped[at] ^= 0x20
        with pytest.raises(DamageError):
            decode(bytes(flipped))
    with pytest.raises(DamageError):
        decode(value + b"\0")


@pytest.mark.parametrize(("value", "decode"), DECODERS)
@settings(deadline=None)
@given(data=st.data())
def test_garbage_under_a_right_checksum_is_refused_or_decodes(
    value: bytes, decode: Callable[[bytes], object], data: st.DataObject
) -> None:
    body = bytearray(value[12:-4])
    edits = st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), min_size=1, max_size=6)
    for at, byte in data.draw(edits):
        body[at] = byte
    cut = data.draw(st.integers(0, len(body)))
    for forged in (bytes(body), bytes(body[:cut]), data.draw(st.binary(max_size=80))):
        with suppress(DamageError):
            decode(seal(value[:4], forged))


@pytest.mark.parametrize(
    "spans",
    [
        (),
        (Span(0, 1, 0, 1),),
        (Span(0, 0, 0, 0),),
        (Span(0, 0, 0, 2**20 + 1),),
        (Span(0, 0, 0, 2), Span(0, 0, 3, 2)),
        (Span(0, 0, 0, 2), Span(0, 1, 1, 2)),
        (Span(0, 0, 0, 2), Span(1, 0, 0, 2), Span(0, 1, 0, 2)),
    ],
)
def test_spans_with_gaps_or_out_of_order_are_refused(spans: tuple[Span, ...]) -> None:
    with pytest.raises(DamageError):
        check_spans(spans)
