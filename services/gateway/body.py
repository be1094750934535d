"""Request bodies: read within a limit, decompressed within the same limit, parsed as a JSON object."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, cast

import orjson
from starlette.requests import ClientDisconnect, Request

from services.gateway.errors import BadRequestError, BodyTooLargeError, EncodingError
from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.stream import ClientGoneError

_GZIP_WINDOW_BITS = 31


async def read_object(request: Request, max_bytes: int) -> Fields:
    """The body as a JSON object, whatever its Content-Type says.

    Raises BodyTooLargeError as soon as the limit is passed, EncodingError, BadRequestError, ClientGoneError.
    """
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise EncodingError(f"Content-Encoding {encoding!r} is not supported; send the body plain or gzip-compressed.")
    body = await _read(request, max_bytes)
    if encoding.endswith("gzip"):
        # zlib releases the GIL; other answers keep streaming.
        body = await asyncio.to_thread(_gunzip, body, max_bytes)
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
