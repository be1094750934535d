"""A name service that tests write, and the wait until its changes have been noticed."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class NamedHosts:
    """Looks names up in ``ips_by_host``; what is not there cannot be resolved."""

    ips_by_host: dict[str, Sequence[str]]
    asked: list[str] = field(default_factory=list[str])

    async def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        try:
            return self.ips_by_host[host]
        except KeyError:
            raise OSError("no such name") from None


async def until(condition: Callable[[], bool]) -> None:
    """Give up after ten seconds."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")
