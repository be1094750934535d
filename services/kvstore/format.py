"""Keys and values of pages, tails, boundary records and manifests; docs/kv-format.md describes every byte."""

from __future__ import annotations

import struct
from functools import lru_cache

from services.kvstore.errors import DamageError
from services.kvstore.frame import FRAME_BYTES, Cursor, seal, unseal
from services.kvstore.state import (
    ID_BYTES,
    NAMESPACE_BYTES,
    TOKEN_BYTES,
    Blob,
    BlobId,
    ChunkHead,
    Manifest,
    ManifestId,
    Namespace,
    Owner,
    Page,
    PageKey,
    Span,
    check_spans,
    shared_spans,
)

_CHUNK_MAGIC, _PAGE_MAGIC, _MANIFEST_MAGIC = b"FPch", b"FPpg", b"FPmf"
_CHUNK_KEY = struct.Struct(">16sIIQ")
_CHUNK = struct.Struct("<B3xIIIIQQIII")
_PAGE = struct.Struct("<II")
_MANIFEST = struct.Struct("<IIQQIII")
_SPAN = struct.Struct("<IIQI")
_COUNT = struct.Struct("<I")
_IDENTITY_BYTES = NAMESPACE_BYTES + ID_BYTES

CHUNK_KEY_BYTES = _CHUNK_KEY.size
CHUNK_OVERHEAD_BYTES = CHUNK_KEY_BYTES + FRAME_BYTES + _IDENTITY_BYTES + _CHUNK.size
PAGE_ROW_PREFIX = b"P"


def chunk_key(blob_id: BlobId, span: Span) -> bytes:
    """Key in the family ``pages``."""
    return _CHUNK_KEY.pack(blob_id, span.layer, span.channel, span.offset)


def blob_range(blob_id: BlobId) -> tuple[bytes, bytes]:
    """Keys [first, last) of a blob's chunks."""
    return blob_id, blob_id + b"\xff" * (CHUNK_KEY_BYTES - ID_BYTES + 1)


def page_row_key(namespace: Namespace, key: PageKey) -> bytes:
    """Key in the family ``index``."""
    return PAGE_ROW_PREFIX + namespace + key


def manifest_key(namespace: Namespace, manifest_id: ManifestId) -> bytes:
    """Key in the family ``manifests``."""
    return namespace + manifest_id


def encode_chunk(head: ChunkHead, token_ids: bytes, data: bytes | memoryview, data_crc32c: int) -> bytes:
    """Value of a chunk; ``token_ids`` only in the first chunk of a page or tail.

    The data's own checksum, which readers are told, is kept so that no read computes it.
    """
    fixed = _CHUNK.pack(
        head.owner,
        head.first_token,
        head.num_tokens,
        head.layer,
        head.channel,
        head.offset,
        head.total,
        len(token_ids),
        len(data),
        data_crc32c,
    )
    return seal(_CHUNK_MAGIC, head.namespace, head.owner_id, fixed, token_ids, data)


def decode_chunk(value: bytes) -> tuple[ChunkHead, bytes, memoryview, int]:
    """(head, token ids, data, its CRC32C); the data is a view of ``value``. Raises DamageError."""
    cursor = unseal(_CHUNK_MAGIC, value)
    namespace, owner_id = _identity(cursor)
    raw = cursor.take(_CHUNK.size)
    owner, first, tokens, layer, channel, offset, total, id_bytes, data_bytes, data_crc = _CHUNK.unpack(raw)
    token_ids, data = bytes(cursor.take(id_bytes)), cursor.take(data_bytes)
    cursor.end()
    if owner not in (1, 2, 3) or bytes(raw[1:4]) != bytes(3) or id_bytes % TOKEN_BYTES:
        raise DamageError("format")
    head = ChunkHead(namespace, Owner(owner), owner_id, first, tokens, layer, channel, offset, total)
    return head, token_ids, data, data_crc


def encode_page(page: Page) -> bytes:
    """Value of a page row."""
    fixed = _PAGE.pack(page.first_token, page.num_tokens)
    return seal(_PAGE_MAGIC, page.namespace, page.key, fixed, page.token_ids, _blob(page.blob))


def decode_page(value: bytes) -> Page:
    """Raises DamageError."""
    cursor = unseal(_PAGE_MAGIC, value)
    namespace, key = _identity(cursor)
    first, tokens = cursor.fields(_PAGE)
    token_ids = bytes(cursor.take(tokens * TOKEN_BYTES))
    blob = _take_blob(cursor)
    cursor.end()
    return Page(namespace, PageKey(key), first, token_ids, blob)


def encode_manifest(manifest: Manifest) -> bytes:
    """Value of a manifest."""
    tenant = manifest.tenant.encode()
    fixed = _MANIFEST.pack(
        manifest.round,
        manifest.token_count,
        manifest.resident_bytes,
        manifest.created_ms,
        len(tenant),
        len(manifest.page_keys),
        len(manifest.tail_token_ids),
    )
    return seal(
        _MANIFEST_MAGIC,
        manifest.namespace,
        manifest.manifest_id,
        bytes([manifest.is_head]),
        b"\0" if manifest.parent_id is None else b"\1" + manifest.parent_id,
        fixed,
        tenant,
        *manifest.page_keys,
        manifest.tail_token_ids,
        _optional_blob(manifest.tail),
        _optional_blob(manifest.boundary),
    )


def decode_manifest(value: bytes) -> Manifest:
    """Raises DamageError."""
    cursor = unseal(_MANIFEST_MAGIC, value)
    namespace, manifest_id = _identity(cursor)
    is_head = cursor.flag()
    parent_id = ManifestId(bytes(cursor.take(ID_BYTES))) if cursor.flag() else None
    round_, token_count, resident, created, tenant_bytes, num_pages, tail_bytes = cursor.fields(_MANIFEST)
    try:
        tenant = str(cursor.take(tenant_bytes), "utf-8")
    except UnicodeDecodeError:
        raise DamageError("format") from None
    keys = bytes(cursor.take(num_pages * ID_BYTES))
    tail_token_ids = bytes(cursor.take(tail_bytes))
    tail, boundary = (_take_blob(cursor) if cursor.flag() else None for _ in range(2))
    cursor.end()
    if tail_bytes % TOKEN_BYTES or (tail is None) != (tail_bytes == 0):
        raise DamageError("format")
    return Manifest(
        namespace=namespace,
        manifest_id=ManifestId(manifest_id),
        parent_id=parent_id,
        round=round_,
        is_head=is_head,
        token_count=token_count,
        resident_bytes=resident,
        created_ms=created,
        tenant=tenant,
        page_keys=tuple(PageKey(keys[i : i + ID_BYTES]) for i in range(0, len(keys), ID_BYTES)),
        tail_token_ids=tail_token_ids,
        tail=tail,
        boundary=boundary,
    )


def page_bytes(page: Page) -> int:
    """Stored bytes of a page: its row, its chunks and their keys."""
    row = len(PAGE_ROW_PREFIX) + 2 * _IDENTITY_BYTES + FRAME_BYTES + _PAGE.size + len(page.token_ids)
    row += _blob_row_bytes(page.blob)
    return row + _chunks_bytes(page.blob, page.num_tokens)


def manifest_bytes(manifest: Manifest) -> int:
    """Stored bytes of a manifest: its row, and the chunks of its tail and boundary record."""
    parent = 0 if manifest.parent_id is None else ID_BYTES
    row = 2 * _IDENTITY_BYTES + FRAME_BYTES + 2 + parent + _MANIFEST.size + len(manifest.tenant.encode())
    row += ID_BYTES * len(manifest.page_keys) + len(manifest.tail_token_ids) + 2
    for blob, num_ids in ((manifest.tail, len(manifest.tail_token_ids) // TOKEN_BYTES), (manifest.boundary, 0)):
        if blob is not None:
            row += _blob_row_bytes(blob) + _chunks_bytes(blob, num_ids)
    return row


def _chunks_bytes(blob: Blob, num_ids: int) -> int:
    return blob.data_bytes + CHUNK_OVERHEAD_BYTES * len(blob.spans) + TOKEN_BYTES * num_ids


def _blob_row_bytes(blob: Blob) -> int:
    return ID_BYTES + _COUNT.size + _SPAN.size * len(blob.spans)


def _identity(cursor: Cursor) -> tuple[Namespace, bytes]:
    return Namespace(bytes(cursor.take(NAMESPACE_BYTES))), bytes(cursor.take(ID_BYTES))


def _blob(blob: Blob) -> bytes:
    spans = (_SPAN.pack(span.layer, span.channel, span.offset, span.length) for span in blob.spans)
    return b"".join((blob.blob_id, _COUNT.pack(len(blob.spans)), *spans))


def _optional_blob(blob: Blob | None) -> bytes:
    return b"\0" if blob is None else b"\1" + _blob(blob)


def _take_blob(cursor: Cursor) -> Blob:
    blob_id = BlobId(bytes(cursor.take(ID_BYTES)))
    (count,) = cursor.fields(_COUNT)
    return Blob(blob_id, _decode_spans(bytes(cursor.take(count * _SPAN.size))))


@lru_cache(maxsize=256)
def _decode_spans(raw: bytes) -> tuple[Span, ...]:
    spans = tuple(Span(*fields) for fields in _SPAN.iter_unpack(raw))
    check_spans(spans)
    return shared_spans(spans)
