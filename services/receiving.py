"""Receives what gRPC calls answer, without losing memory when the reader is cancelled.

grpc.aio never frees a message that arrives for a task that was cancelled while it waited for it: a few kilobytes to a
whole chunk for each caller that leaves. So the wait for a message outlives its reader: the call is cancelled, which
ends the wait at once and frees what came.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeAlias, TypeVar, cast

import grpc.aio

_T = TypeVar("_T")
_Stream: TypeAlias = "grpc.aio.UnaryStreamCall[Any, _T] | grpc.aio.StreamStreamCall[Any, _T]"


async def message_of(call: _Stream[_T]) -> _T | None:
    """The next message of a stream; None at its end. Cancelling it cancels the call. Raises AioRpcError."""
    message = await _outliving(call, call.read())
    return None if message is grpc.aio.EOF else cast("_T", message)


async def messages_of(call: _Stream[_T]) -> AsyncGenerator[_T]:
    """All messages of a stream in order. Cancelling it cancels the call. Raises AioRpcError."""
    while (message := await message_of(call)) is not None:
        yield message


async def answer_of(call: grpc.aio.UnaryUnaryCall[Any, _T]) -> _T:
    """The answer of a unary call. Cancelling it cancels the call. Raises AioRpcError."""
    return await _outliving(call, call)


async def _outliving(call: grpc.aio.Call, receiving: Awaitable[_T]) -> _T:
    task = asyncio.ensure_future(receiving)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():  # the call was cancelled, not its reader
            raise
        call.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # seen, so that it isn't reported as one that nobody looked at
        raise
