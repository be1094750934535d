"""The replicas behind a list of addresses, and one channel to each.

An address such as ``engine:7402`` may stand for many replicas (a headless service, a scaled compose service). gRPC
would pick one of them and look again only when it is lost, so names are resolved here: at the start, every few
seconds, and when a caller says that a replica failed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import grpc.aio

from services import rpc

INTERVAL_S: Final = 5.0

_Client = TypeVar("_Client")
LookUp = Callable[[str], Awaitable[Sequence[str]]]
"""From a host's name to its IP addresses, at least one. Raises OSError."""
_log = logging.getLogger(__name__)


async def look_up(host: str) -> Sequence[str]:
    """All IP addresses of ``host``, as the system resolves it. Raises OSError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from None
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Resolver:
    """Turns configured addresses into concrete ones, and remembers what each name stood for."""

    def __init__(self, addresses: Sequence[str], look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._concrete_by_address: dict[str, tuple[str, ...]] = {address: (address,) for address in addresses}
        self._host_port_by_address = {
            address: named for address in addresses if (named := _named_host(address)) is not None
        }
        self._failing: set[str] = set()

    @property
    def has_names(self) -> bool:
        """Whether looking up again can change anything."""
        return bool(self._host_port_by_address)

    async def resolve(self) -> list[str]:
        """``ip:port``, ``[ip]:port`` and ``unix:path``, each once; takes as long as the slowest name.

        A name that cannot be resolved keeps what it last stood for. Before it ever could, it stands for itself: gRPC
        then tells each caller what is wrong with it.
        """
        await asyncio.gather(*(self._refresh(address) for address in self._host_port_by_address))
        return list(dict.fromkeys(one for concrete in self._concrete_by_address.values() for one in concrete))

    async def _refresh(self, address: str) -> None:
        host, port = self._host_port_by_address[address]
        try:
            ips = await self._look_up(host)
        except OSError as error:
            if address not in self._failing:
                kept = ", ".join(self._concrete_by_address[address])
                _log.warning("%s cannot be resolved (%s); it remains %s", address, error, kept)
            self._failing.add(address)
            return
        self._failing.discard(address)
        # A name with both families is mostly one server at two addresses, as localhost is.
        ips = [ip for ip in ips if ":" not in ip] or [f"[{ip}]" for ip in ips]
        concrete = tuple(f"{ip}:{port}" for ip in sorted(set(ips)))
        if concrete != self._concrete_by_address[address]:
            _log.info("%s is now %s", address, ", ".join(concrete))
        self._concrete_by_address[address] = concrete


@dataclass(slots=True)
class _Opened(Generic[_Client]):
    channel: grpc.aio.Channel
    client: _Client
    left_s: float | None = None
    """When its address vanished, by the monotonic clock; None while it is there."""


class Replicas(Generic[_Client]):
    """A client for each replica; made by ``connect``.

    Invariant: every current address has an open channel. Only ``refresh`` opens and closes them.
    """

    def __init__(self, resolver: Resolver, make: Callable[[str, grpc.aio.Channel], _Client], *, grace_s: float) -> None:
        self._resolver = resolver
        self._make = make
        self._grace_s = grace_s
        self._opened_by_address: dict[str, _Opened[_Client]] = {}
        self._asked = asyncio.Event()

    def all(self) -> list[_Client]:
        """Those that are there now."""
        return [opened.client for opened in self._opened_by_address.values() if opened.left_s is None]

    def in_order(self, key: str) -> Iterator[_Client]:
        """Each once, in ``key``'s order of preference; what comes and goes meanwhile is taken into account."""
        given: set[str] = set()
        while True:
            addresses = [address for address, opened in self._opened_by_address.items() if opened.left_s is None]
            rest = [address for address in rpc.rendezvous(key, addresses) if address not in given]
            if not rest:
                return
            given.add(rest[0])
            yield self._opened_by_address[rest[0]].client

    def look_again(self) -> None:
        """Resolve the names now rather than at the next interval, since a replica does not answer. Returns at once."""
        self._asked.set()

    async def refresh(self) -> None:
        """Resolve the names, open what is new, and close what has been gone for the grace."""
        addresses, now_s = await self._resolver.resolve(), time.monotonic()
        for address in addresses:
            if address not in self._opened_by_address:
                channel = rpc.open_channel(address)
                self._opened_by_address[address] = _Opened(channel, self._make(address, channel))
            self._opened_by_address[address].left_s = None
        for address in self._opened_by_address.keys() - set(addresses):
            opened = self._opened_by_address[address]
            if opened.left_s is None:
                opened.left_s = now_s
            elif now_s - opened.left_s >= self._grace_s:
                del self._opened_by_address[address]
                await opened.channel.close()

    async def follow(self, interval_s: float) -> None:
        """Refresh every ``interval_s``, or sooner when asked, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(interval_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001 - the loop's top: the next round may go better
                _log.exception("looking up replicas failed")

    async def close(self) -> None:
        """Close all channels and cancel the calls on them."""
        await asyncio.gather(*(opened.channel.close() for opened in self._opened_by_address.values()))


@asynccontextmanager
async def connect(
    addresses: Sequence[str],
    make: Callable[[str, grpc.aio.Channel], _Client],
    *,
    grace_s: float,
    look_up: LookUp = look_up,
    interval_s: float = INTERVAL_S,
) -> AsyncGenerator[Replicas[_Client]]:
    """Resolve the addresses and keep a client for each replica, ``make(concrete address, channel)``.

    ``grace_s`` is the longest that a request may still use a replica whose address has vanished; its channel is closed
    at the first look-up after that.
    """
    resolver = Resolver(addresses, look_up)
    replicas = Replicas(resolver, make, grace_s=grace_s)
    following: asyncio.Task[None] | None = None
    try:
        await replicas.refresh()
        if resolver.has_names:
            following = asyncio.create_task(replicas.follow(interval_s))
        yield replicas
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await replicas.close()


def _named_host(address: str) -> tuple[str, str] | None:
    """Host and port, where the host is a name; None for what is concrete, or gRPC's to read (``scheme:…``)."""
    host, _, port = address.rpartition(":")
    if host in ("", "unix") or ":" in host or not port.isdecimal():
        return None
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host, port
    return None
