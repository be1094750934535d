"""A service that echoes, for the tests of a service process's life."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from services import process
from services.errors import ServiceError
from services.health import IsReady
from services.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings(process.ServerSettings):
    """Beside what every service can be told."""

    num_shelves: int = setting(1, help="shelves", minimum=1)
    closed: Path | None = setting(None, help="file that is written when resources are closed")
    unready: Path | None = setting(None, help="file; while it exists, the service is not ready")


class NoShelvesLeft(ServiceError):
    """Stops the start."""

    status = "FAILED_PRECONDITION"
    reason = "NO_SHELVES_LEFT"


@asynccontextmanager
async def build(config: TinySettings, server: grpc.aio.Server) -> AsyncGenerator[Mapping[str, IsReady]]:
    """Serves ``tiny.Tiny/Echo``, a stream of plain bytes in both directions; it hangs after ``hang``.

    ``fencepost.tiny.Tiny/WatchEcho`` answers once, or without pause if told ``busy``, and never ends by itself.
    """
    if config.num_shelves > 8:
        raise NoShelvesLeft("there are 8 shelves")
    is_open = True

    async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncGenerator[bytes]:
        async for request in requests:
            yield request
            if request == b"hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.1)
                    sys.stderr.write(f"cut while {'open' if is_open else 'closed'}\n")

    handler: Any = grpc.stream_stream_rpc_method_handler(cast(Any, echo))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tiny.Tiny", {"Echo": handler}),))

    async def watch(request: bytes, context: Any) -> AsyncGenerator[bytes]:
        yield request
        while request == b"busy":
            yield request
        await asyncio.Event().wait()

    watching: Any = grpc.unary_stream_rpc_method_handler(cast(Any, watch))
    watches = grpc.method_handlers_generic_handler("fencepost.tiny.Tiny", {"WatchEcho": watching})
    server.add_generic_rpc_handlers((watches,))

    async def is_ready() -> bool:
        return config.unready is None or not config.unready.exists()

    try:
        yield {"tiny.Tiny": is_ready}
    finally:
        is_open = False
        if config.closed is not None:
            config.closed.touch()


if __name__ == "__main__":
    sys.exit(process.main("tiny", TinySettings, build))
