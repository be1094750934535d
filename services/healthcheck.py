"""Asks one service whether it serves, for container health checks: ``python -m services.healthcheck ADDRESS``.

ADDRESS is ``host:port`` of a gRPC service, or ``http://host:port`` of the gateway. Exit status 0 means serving.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from services import probe

_USAGE: Final = "usage: python -m services.healthcheck HOST:PORT | http://HOST:PORT\n"


def main(argv: Sequence[str]) -> int:
    """0 when the service serves, 1 when it does not, 2 when the address is not one."""
    if len(argv) != 1:
        sys.stderr.write(_USAGE)
        return 2
    is_serving = asyncio.run(_is_serving(argv[0]))
    if is_serving is None:
        sys.stderr.write(_USAGE)
        return 2
    return 0 if is_serving else 1


async def _is_serving(address: str) -> bool | None:
    """None for an address that cannot be asked."""
    try:
        url = urlsplit(address if "://" in address else f"//{address}")
        host, port = url.hostname, url.port
    except ValueError:
        return None
    if host is None or port is None or url.scheme not in ("", "http"):
        return None
    return await (probe.serves_http(host, port) if url.scheme else probe.serves_grpc(address))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
