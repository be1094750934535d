"""Request bodies: read within a limit, decompressed within the same limit, parsed as a JSON object."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, cast

import orjson
import zstandard
from starlette.requests import ClientDisconnect, Request

from services.gateway.errors import BadRequestError, BodyTooLargeError, EncodingError
from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.stream import ClientGoneError

_GZIP_WINDOW_BITS = 31
_ZSTD_WINDOW_BYTES = 8 * 2**20
"""What every decoder should have room for (RFC 8878, section 3.1.1.1.2)."""
_ZSTD_PIECE_BYTES = 256
"""A block of zstd takes at least 4 bytes and gives at most 128 KiB, so a piece gives at most 8 MiB."""


async def read_object(request: Request, max_bytes: int) -> Fields:
    """The body as a JSON object, whatever its Content-Type says.

    Raises BodyTooLargeError as soon as the limit is passed, EncodingError, BadRequestError, ClientGoneError.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "zstd"):
        raise EncodingError(f"Content-Encoding {encoding!r} is not supported; send the body plain, or as gzip or zstd.")
    body = await _read(request, max_bytes)
    # Both release the GIL; other answers keep streaming.
    if encoding.endswith("gzip"):
        body = await asyncio.to_thread(_gunzip, body, max_bytes)
    elif encoding == "zstd":
        body = await asyncio.to_thread(_unzstd, body, max_bytes)
    return _parse(body)


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(chunks)


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        body = decompressor.decompress(data, max_bytes + 1)
    except zlib.error:
        raise BadRequestError("The body is not valid gzip.") from None
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    if not decompressor.eof or decompressor.unused_data:
        raise BadRequestError("The body is not one complete gzip member.")
    return body


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    window_bytes = max(max_bytes, _ZSTD_WINDOW_BYTES)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.window_size > window_bytes or max_bytes < frame.content_size < zstandard.CONTENTSIZE_UNKNOWN:
            raise _too_large(max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=window_bytes).decompressobj()
        # The library gives all that a piece of input holds, so the pieces are what bounds the output.
        for start in range(0, len(data), _ZSTD_PIECE_BYTES):
            if decompressor.eof:
                raise BadRequestError("The body is not one complete zstd frame.")
            chunks.append(decompressor.decompress(data[start : start + _ZSTD_PIECE_BYTES]))
            num_bytes += len(chunks[-1])
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
    except zstandard.ZstdError:
        raise BadRequestError("The body is not valid zstd.") from None
    if not decompressor.eof or decompressor.unused_data:
        raise BadRequestError("The body is not one complete zstd frame.")
    return b"".join(chunks)


def _parse(body: bytes) -> Fields:
    if not body:
        raise BadRequestError("The body is empty; it must be a JSON object.")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(
            f"The body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        ) from None
    if not isinstance(value, dict):
        raise BadRequestError("The body must be a JSON object.")
    return Fields(cast(dict[str, Any], value), RawJson(body))


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {max_bytes} bytes.")
