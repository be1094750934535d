"""Messages of ``SnapshotService`` to the store's values and back; whatever has a wrong shape is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fencepost.kvstore.v1 import snapshot_pb2

from services.kvstore.errors import InvalidRequestError
from services.kvstore.incoming import Header, IncomingChunk
from services.kvstore.matching import Partial
from services.kvstore.reading import ReadChunk
from services.kvstore.state import (
    ID_BYTES,
    MAX_CHUNK_BYTES,
    NAMESPACE_BYTES,
    Manifest,
    ManifestId,
    Namespace,
    Owner,
    Page,
    PageKey,
)
from services.kvstore.store import Removed
from services.kvstore.writing import Outcome


def read_namespace(value: bytes) -> Namespace:
    """32 bytes."""
    if len(value) != NAMESPACE_BYTES:
        raise InvalidRequestError(f"namespace: {len(value)} bytes instead of {NAMESPACE_BYTES}")
    return Namespace(value)


def read_manifest_id(value: bytes) -> ManifestId:
    """16 bytes."""
    if len(value) != ID_BYTES:
        raise InvalidRequestError(f"manifest_id: {len(value)} bytes instead of {ID_BYTES}")
    return ManifestId(value)


def read_page_keys(values: Iterable[bytes]) -> tuple[PageKey, ...]:
    """16 bytes each."""
    keys = tuple(map(PageKey, values))
    if any(len(key) != ID_BYTES for key in keys):
        raise InvalidRequestError(f"page_keys: one has not {ID_BYTES} bytes")
    return keys


def read_header(message: snapshot_pb2.WriteHeader) -> Header:
    """What a writer says about its state."""
    return Header(
        namespace=read_namespace(message.namespace),
        manifest_id=read_manifest_id(message.manifest_id),
        parent_id=read_manifest_id(message.parent_manifest_id) if message.HasField("parent_manifest_id") else None,
        round=message.round,
        is_head=message.is_head,
        token_count=message.token_count,
        resident_bytes=message.resident_bytes,
        page_keys=read_page_keys(message.page_keys),
        tail_token_ids=message.tail_token_ids,
        has_boundary=message.has_boundary,
        tenant=message.tenant,
        page_tokens=message.page_tokens,
    )


def read_chunk(message: snapshot_pb2.Chunk) -> IncomingChunk:
    """A chunk as it was sent; its bytes are not checked yet."""
    match message.WhichOneof("owner"):
        case "page_key":
            owner, page_key = Owner.PAGE, PageKey(message.page_key)
        case "tail":
            owner, page_key = Owner.TAIL, None
        case "boundary":
            owner, page_key = Owner.BOUNDARY, None
        case _:
            raise InvalidRequestError("owner: a page_key, the tail or the boundary")
    return IncomingChunk(
        owner=owner,
        page_key=page_key,
        layer=message.layer,
        channel=message.channel,
        offset=message.offset,
        total=message.total,
        crc32c=message.crc32c,
        data=message.data,
        token_ids=message.token_ids if message.HasField("token_ids") else None,
    )


def read_layers(message: snapshot_pb2.LayerRange) -> range:
    """At least one layer."""
    if not message.count:
        raise InvalidRequestError("layers.count: at least 1")
    return range(message.first, message.first + message.count)


def partial_message(partial: Partial) -> snapshot_pb2.Partial:
    """What a prompt agrees with in part."""
    message = snapshot_pb2.Partial(tokens=partial.num_tokens)
    match partial.owner:
        case Page() as page:
            message.page_key, message.token_ids, message.bytes = page.key, page.token_ids, page.blob.data_bytes
        case Manifest() as manifest:
            message.manifest_id, message.token_ids = manifest.manifest_id, manifest.tail_token_ids
            message.bytes = 0 if manifest.tail is None else manifest.tail.data_bytes
    return message


def batches(chunks: Sequence[ReadChunk]) -> Iterator[list[ReadChunk]]:
    """Chunks for one message each: about 1 MiB of data, or all where the data is elsewhere."""
    batch: list[ReadChunk] = []
    num_bytes = 0
    for chunk in chunks:
        size = 0 if chunk.data is None else len(chunk.data)
        if batch and num_bytes + size > MAX_CHUNK_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(chunk)
        num_bytes += size
    if batch:
        yield batch


def chunk_message(chunk: ReadChunk) -> snapshot_pb2.Chunk:
    """A checked chunk, with its bytes or the place where they lie."""
    head = chunk.head
    message = snapshot_pb2.Chunk(
        layer=head.layer,
        channel=head.channel,
        offset=head.offset,
        total=head.total,
        crc32c=chunk.crc32c,
        token_ids=chunk.token_ids,
    )
    if chunk.data is not None:
        message.data = bytes(chunk.data)
    else:
        message.placed.offset, message.placed.length = chunk.place, chunk.length
    match head.owner:
        case Owner.PAGE:
            message.page_key = head.owner_id
        case Owner.TAIL:
            message.tail.SetInParent()
        case Owner.BOUNDARY:
            message.boundary.SetInParent()
    return message


def result_message(outcome: Outcome) -> snapshot_pb2.WriteResult:
    """What became of a Write."""
    return snapshot_pb2.WriteResult(
        stored=outcome.dropped_reason is None,
        stored_bytes=outcome.stored_bytes,
        deduplicated_pages=outcome.deduplicated_pages,
        dropped_reason=outcome.dropped_reason or "",
        may_repeat=outcome.may_repeat,
    )


def deleted_message(removed: Removed, num_records: int, record_bytes: int) -> snapshot_pb2.DeleteResponse:
    """What a deletion took away."""
    return snapshot_pb2.DeleteResponse(
        manifests=removed.manifests,
        pages=removed.pages,
        records=num_records,
        bytes=removed.num_bytes + record_bytes,
    )
