"""Small pages and manifests."""

from __future__ import annotations

from dataclasses import replace

from services.kvstore.state import Blob, BlobId, Manifest, ManifestId, Namespace, Page, PageKey, Span

NAMESPACE = Namespace(bytes(range(32)))
_SPANS = (Span(0, 0, 0, 5), Span(0, 0, 5, 2), Span(0, 1, 0, 3), Span(1, 0, 0, 7))


def name(text: str) -> bytes:
    return text.encode().ljust(16, b".")


def page(text: str, index: int = 0, namespace: Namespace = NAMESPACE) -> Page:
    blob = Blob(BlobId(name(f"blob {text}")), _SPANS)
    return Page(namespace, PageKey(name(text)), 256 * index, name(text) * 64, blob)


def manifest(text: str, pages: str = "", tail: bytes = b"", namespace: Namespace = NAMESPACE) -> Manifest:
    """A head whose page keys are the letters of ``pages``; a tail has ids and a blob of its own."""
    return Manifest(
        namespace=namespace,
        manifest_id=ManifestId(name(text)),
        parent_id=None,
        round=1,
        is_head=True,
        token_count=256 * len(pages) + len(tail) // 4,
        resident_bytes=9,
        created_ms=1_700_000_000_000,
        tenant="tenant",
        page_keys=tuple(PageKey(name(letter)) for letter in pages),
        tail_token_ids=tail,
        tail=Blob(BlobId(name(f"tail {text}")), _SPANS) if tail else None,
        boundary=None,
    )


def superseded(found: Manifest) -> Manifest:
    return replace(found, is_head=False)
