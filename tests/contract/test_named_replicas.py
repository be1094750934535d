"""One name, several servers: the tokenizer's engines and the gateway's tokenizers, over real gRPC.

All of 127.0.0.0/8 is this machine, so two servers can have one port, as the replicas behind a name do.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import numpy as np
import scripted_engine
import scripted_tokenizer
from fencepost.tokenizer.v1 import tokenizer_pb2
from scripted_engine import ScriptedEngine
from scripted_tokenizer import ScriptedTokenizer

from services import replicas
from services.gateway.upstream import Tokenizer, Tokenizers
from services.tokenizer.engines import Engine, Engines
from services.tokenizer.events import EngineEvent
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from tests.unit.named_hosts import NamedHosts, until

ONE, TWO = "127.0.0.1", "127.0.0.2"
AN_HOUR_S = 3600.0
INTERVAL_S = 0.01
# Ports are random and so are orders of preference: enough that every replica is somebody's first.
KEYS = [f"conversation {number}" for number in range(40)]
IDS: TokenIds = np.arange(3, dtype="<i4")


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def run(engines: Engines, key: str) -> AsyncGenerator[EngineEvent]:
    routing = Routing(tenant="t", cache_scope="t", conversation_key=key)
    request = GenerationRequest("hello", Sampling(), routing, loop_guard=None, warm_up_only=False)
    return engines.run(request, IDS, 20.0, ())


async def turn(engines: Engines, *keys: str) -> None:
    for key in keys:
        assert len([event async for event in run(engines, key)]) == 2


def keys_of(engine: ScriptedEngine) -> list[str]:
    return [request.conversation_key for request in engine.requests]


@asynccontextmanager
async def two_engines() -> AsyncGenerator[tuple[ScriptedEngine, ScriptedEngine]]:
    script = [scripted_engine.admitted(), scripted_engine.finished()]
    one, two = ScriptedEngine("f", script), ScriptedEngine("f", script)
    async with one.serving(f"{ONE}:0"), two.serving(f"{TWO}:{port_of(one.address)}"):
        yield one, two


async def test_conversations_spread_over_the_engines_behind_a_name_and_stay() -> None:
    hosts = NamedHosts({"engine": [ONE, TWO]})
    async with (
        two_engines() as (one, two),
        replicas.connect(
            [f"engine:{port_of(one.address)}"], partial(Engine, fingerprint="f"), grace_s=60, look_up=hosts.look_up
        ) as found,
    ):
        await turn(Engines(found), *KEYS, *KEYS)
        assert set(keys_of(one)).isdisjoint(keys_of(two))
        assert sorted(keys_of(one) + keys_of(two)) == sorted(KEYS * 2)
        assert one.requests
        assert two.requests
        # An engine is described once, however many conversations it has.
        assert (one.num_described, two.num_described) == (1, 1)


async def test_a_vanished_engine_gets_no_new_calls_and_ends_those_it_has() -> None:
    hosts = NamedHosts({"engine": [TWO]})
    async with (
        two_engines() as (one, two),
        replicas.connect(
            [f"engine:{port_of(one.address)}"],
            partial(Engine, fingerprint="f"),
            grace_s=60,
            look_up=hosts.look_up,
            interval_s=INTERVAL_S,
        ) as found,
    ):
        engines = Engines(found)
        two.script = [scripted_engine.admitted(), 0.3, scripted_engine.finished()]
        async with aclosing(run(engines, "long")) as long:
            await anext(long)
            hosts.ips_by_host["engine"] = [ONE]
            await until(lambda: [engine.address for engine in found.all()] == [one.address])
            await turn(engines, *KEYS)
            assert len([event async for event in long]) == 1
    assert keys_of(one) == KEYS
    assert keys_of(two) == ["long"]


async def test_a_new_engine_is_found_within_an_interval() -> None:
    hosts = NamedHosts({"engine": [ONE]})
    async with (
        two_engines() as (one, two),
        replicas.connect(
            [f"engine:{port_of(one.address)}"],
            partial(Engine, fingerprint="f"),
            grace_s=60,
            look_up=hosts.look_up,
            interval_s=INTERVAL_S,
        ) as found,
    ):
        engines = Engines(found)
        await turn(engines, *KEYS)
        hosts.ips_by_host["engine"] = [ONE, TWO]
        await until(lambda: len(found.all()) == 2)
        await turn(engines, *KEYS)
        # Only conversations that the new one takes have moved.
        assert two.requests
        assert sorted(keys_of(one) + keys_of(two)) == sorted(KEYS * 2)
        assert len(keys_of(one)) > len(KEYS)


async def test_an_engine_that_fails_has_the_name_looked_up_at_once() -> None:
    hosts = NamedHosts({"engine": ["127.0.0.3", ONE]})
    async with (
        two_engines() as (one, two),
        replicas.connect(
            [f"engine:{port_of(one.address)}"],
            partial(Engine, fingerprint="f"),
            grace_s=60,
            look_up=hosts.look_up,
            interval_s=AN_HOUR_S,
        ) as found,
    ):
        hosts.ips_by_host["engine"] = [TWO]
        await turn(Engines(found), *KEYS)
        await until(lambda: [engine.address for engine in found.all()] == [two.address])
        assert sorted(keys_of(one) + keys_of(two)) == sorted(KEYS)


async def test_the_gateway_uses_every_tokenizer_behind_a_name() -> None:
    async def ask(tokenizers: Tokenizers) -> None:
        for key in KEYS:
            generation = tokenizers.generate(tokenizer_pb2.GenerateRequest(), key, ())
            assert len([event async for event in generation.events()]) == len(scripted_tokenizer.HELLO)

    hosts = NamedHosts({"tokenizer": [ONE]})
    one, two = ScriptedTokenizer(), ScriptedTokenizer()
    async with one.serving(host=ONE), two.serving(host=TWO, port=port_of(one.address)):
        names = [f"tokenizer:{port_of(one.address)}"]
        async with replicas.connect(
            names, Tokenizer, grace_s=60, look_up=hosts.look_up, interval_s=INTERVAL_S
        ) as found:
            tokenizers = Tokenizers(found, timeout_s=20)
            await ask(tokenizers)
            assert (len(one.requests), len(two.requests)) == (len(KEYS), 0)
            hosts.ips_by_host["tokenizer"] = [ONE, TWO]
            await until(lambda: len(found.all()) == 2)
            await ask(tokenizers)
            num_ones = len(one.requests)
            assert len(KEYS) < num_ones < 2 * len(KEYS)
            assert await tokenizers.health() == {one.address: "SERVING", two.address: "SERVING"}
            hosts.ips_by_host["tokenizer"] = [TWO]
            await until(lambda: len(found.all()) == 1)
            await ask(tokenizers)
            assert len(one.requests) == num_ones
