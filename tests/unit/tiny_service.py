"""A service that echoes, for the tests of a service process's life."""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from services import process
from services.errors import ServiceError
from services.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings(process.ServerSettings):
    """Beside what every service can be told."""

    num_shelves: int = setting(1, help="shelves", minimum=1)
    closed: Path | None = setting(None, help="file that is written when resources are closed")


class NoShelvesLeft(ServiceError):
    """Stops the start."""

    status = "FAILED_PRECONDITION"
    reason = "NO_SHELVES_LEFT"


async def _echo(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[bytes]:
    async for request in requests:
        yield request


@asynccontextmanager
async def build(config: TinySettings, server: grpc.aio.Server) -> AsyncGenerator[Sequence[str]]:
    """Serves ``tiny.Tiny/Echo``, a stream of plain bytes in both directions."""
    if config.num_shelves > 8:
        raise NoShelvesLeft("there are 8 shelves")
    handler: Any = grpc.stream_stream_rpc_method_handler(_echo)  # pyright: ignore[reportArgumentType]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tiny.Tiny", {"Echo": handler}),))
    try:
        yield ("tiny.Tiny",)
    finally:
        if config.closed is not None:
            config.closed.touch()


if __name__ == "__main__":
    sys.exit(process.main("tiny", TinySettings, build))
