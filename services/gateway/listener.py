"""The listening socket, had before anything else is started."""

from __future__ import annotations

import errno
import os
import socket

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that listens; connections wait in it until somebody accepts. Raises OSError with one line."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(f"cannot listen on {where}: {_why(error)}") from None


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Where the socket can be reached, e.g. ``http://127.0.0.1:8000``."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _why(error: OSError) -> str:
    match error.errno:
        case _ if isinstance(error, socket.gaierror):
            return "the name does not resolve"
        case errno.EADDRINUSE:
            return "the address is in use"
        case errno.EADDRNOTAVAIL:
            return "the address is not ours"
        case int(number):
            return os.strerror(number).lower()
        case _:
            return str(error)
