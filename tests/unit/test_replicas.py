"""Names become replicas: which addresses, which channels, and for how long."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from services import replicas, rpc
from services.replicas import Resolver
from tests.unit.named_hosts import NamedHosts, until

AN_HOUR_S = 3600.0


@dataclass(eq=False)
class Client:
    address: str
    channel: grpc.aio.Channel

    @property
    def is_open(self) -> bool:
        return self.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN


def addresses_of(clients: Sequence[Client]) -> set[str]:
    return {client.address for client in clients}


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7402", "[::1]:7402", "unix:/run/e.sock", "unix:7", "dns:///engine:7402", "engine"]
)
async def test_what_is_no_name_with_a_port_is_left_as_it_is(address: str) -> None:
    hosts = NamedHosts({})
    resolver = Resolver([address], hosts.look_up)
    assert await resolver.resolve() == [address]
    assert not resolver.has_names
    assert hosts.asked == []


async def test_a_name_stands_for_all_its_addresses_once() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.2", "10.0.0.1", "10.0.0.2"], "other": ["10.0.0.3", "10.0.0.1"]})
    resolver = Resolver(["engine:1", "10.0.0.3:1", "other:1", "engine:2"], hosts.look_up)
    assert resolver.has_names
    assert await resolver.resolve() == ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.1:2", "10.0.0.2:2"]


async def test_two_families_of_one_name_are_one_server() -> None:
    hosts = NamedHosts({"localhost": ["::1", "127.0.0.1"], "six": ["fd00::2", "fd00::1"]})
    assert await Resolver(["localhost:1"], hosts.look_up).resolve() == ["127.0.0.1:1"]
    assert await Resolver(["six:1"], hosts.look_up).resolve() == ["[fd00::1]:1", "[fd00::2]:1"]


async def test_a_failed_look_up_keeps_the_last_answer_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hosts = NamedHosts({})
    resolver = Resolver(["engine:1"], hosts.look_up)
    for _ in range(3):
        assert await resolver.resolve() == ["engine:1"]
    assert caplog.messages == ["engine:1 cannot be resolved (no such name); it remains engine:1"]
    hosts.ips_by_host["engine"] = ["10.0.0.1", "10.0.0.2"]
    assert await resolver.resolve() == ["10.0.0.1:1", "10.0.0.2:1"]
    del hosts.ips_by_host["engine"]
    for _ in range(3):
        assert await resolver.resolve() == ["10.0.0.1:1", "10.0.0.2:1"]
    assert caplog.messages[1:] == ["engine:1 cannot be resolved (no such name); it remains 10.0.0.1:1, 10.0.0.2:1"]


async def test_the_system_knows_localhost_and_refuses_what_is_no_name() -> None:
    assert await Resolver(["localhost:1"]).resolve() in (["127.0.0.1:1"], ["[::1]:1"])
    for host in ("a..b", "a" * 64):
        with pytest.raises(OSError, match="not a host name"):
            await replicas.look_up(host)


async def test_a_client_lives_as_long_as_its_address() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1", "10.0.0.2"]})
    async with replicas.connect(
        ["engine:1"], Client, grace_s=AN_HOUR_S, look_up=hosts.look_up, interval_s=AN_HOUR_S
    ) as found:
        first, second = sorted(found.all(), key=lambda client: client.address)
        hosts.ips_by_host["engine"] = ["10.0.0.2", "10.0.0.3"]
        await found.refresh()
        assert addresses_of(found.all()) == {"10.0.0.2:1", "10.0.0.3:1"}
        assert second in found.all()
        # Calls that began before may still end, and an address that comes back finds its old connection.
        assert first.is_open
        hosts.ips_by_host["engine"] = ["10.0.0.1"]
        await found.refresh()
        assert found.all() == [first]
    assert not first.is_open
    assert not second.is_open


async def test_a_vanished_address_is_closed_after_the_grace() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1", "10.0.0.2"]})
    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=hosts.look_up, interval_s=AN_HOUR_S) as found:
        gone = next(client for client in found.all() if client.address == "10.0.0.1:1")
        hosts.ips_by_host["engine"] = ["10.0.0.2"]
        await found.refresh()
        assert gone.is_open
        await found.refresh()
        assert not gone.is_open
        hosts.ips_by_host["engine"] = ["10.0.0.1"]
        await found.refresh()
        assert addresses_of(found.all()) == {"10.0.0.1:1"}
        assert gone not in found.all()


async def test_concrete_addresses_decide_the_order() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1", "10.0.0.2", "10.0.0.3"]})
    concrete = ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"]
    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=hosts.look_up) as found:
        orders = {key: [client.address for client in found.in_order(key)] for key in map(str, range(20))}
    assert orders == {key: rpc.rendezvous(key, concrete) for key in orders}
    assert len({order[0] for order in orders.values()}) == 3


async def test_an_order_in_use_follows_what_comes_and_goes() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1", "10.0.0.2"]})
    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=hosts.look_up, interval_s=AN_HOUR_S) as found:
        order = found.in_order("key")
        next(order)
        hosts.ips_by_host["engine"] = ["10.0.0.3"]
        await found.refresh()
        assert [client.address for client in order] == ["10.0.0.3:1"]


async def test_names_are_looked_up_again_and_again() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1"]})
    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=hosts.look_up, interval_s=0.005) as found:
        hosts.ips_by_host["engine"] = ["10.0.0.1", "10.0.0.2"]
        await until(lambda: len(found.all()) == 2)
        hosts.ips_by_host["engine"] = ["10.0.0.2"]
        await until(lambda: addresses_of(found.all()) == {"10.0.0.2:1"})


async def test_names_are_looked_up_when_asked() -> None:
    hosts = NamedHosts({"engine": ["10.0.0.1"]})
    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=hosts.look_up, interval_s=AN_HOUR_S) as found:
        hosts.ips_by_host["engine"] = ["10.0.0.2"]
        await asyncio.sleep(0.02)
        assert len(hosts.asked) == 1
        found.look_again()
        await until(lambda: addresses_of(found.all()) == {"10.0.0.2:1"})
        assert len(hosts.asked) == 2


async def test_a_broken_round_is_logged_and_the_next_one_counts(caplog: pytest.LogCaptureFixture) -> None:
    ips: list[str] = ["10.0.0.1"]

    async def look_up(host: str) -> Sequence[str]:
        if not ips:
            raise RuntimeError("a bug")
        return ips

    async with replicas.connect(["engine:1"], Client, grace_s=0, look_up=look_up, interval_s=0.005) as found:
        ips.clear()
        await until(lambda: "looking up replicas failed" in caplog.messages)
        ips.append("10.0.0.2")
        await until(lambda: addresses_of(found.all()) == {"10.0.0.2:1"})
