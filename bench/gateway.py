"""What the gateway costs: CPU per streamed event, time added to the first token, many streams on one core.

Three processes: this client, the gateway (pinned to one core), and a tokenizer that plays a script; this client and the
tokenizer share the other cores. The last line is one JSON object: medians over rounds.

    python -m bench.gateway [--json] [--rounds 3] [--streams 200] [--events 10000]

cpu_per_event_us    CPU time of the gateway for one event of a stream that is sent as fast as it can, by protocol
added_ttft_ms       first event through the gateway, less the first event of the same call made to the tokenizer
streams             how many ran at once, each with an event every 50 ms
stalled             of them, those with a second or more between two events
gap_p99_ms          99th percentile of the time between two events of a stream
core_share          CPU time of the gateway during those streams, as a share of its core
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2, tokenizer_pb2_grpc

from services import rpc
from tests.contract.scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, finished, text

_ROOT = Path(__file__).parents[1]
_PACE_S = 0.05
_STALL_S = 1.0
_BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi", "store": False},
    "messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4096},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the gateway costs.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--events", type=int, default=10_000, help="of each stream whose CPU time is measured")
    parser.add_argument("--serve-script", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_script:
        asyncio.run(_serve_script(options.serve_script))
        return
    found: list[dict[str, float]] = []
    for _ in range(options.rounds):
        found.append(asyncio.run(_round(options.streams, options.events)))
        if not options.json:
            print(found[-1], flush=True)
    medians = {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}
    print(json.dumps({**medians, "streams": options.streams, "stalled": max(one["stalled"] for one in found)}))


async def _round(num_streams: int, num_events: int) -> dict[str, float]:
    port, gateway_port = free_port(), free_port()
    result: dict[str, float] = {}
    async with (
        _process("bench.gateway", "--serve-script", str(port)),
        _process(
            "services.gateway",
            *("--tokenizers", f"127.0.0.1:{port}", "--port", str(gateway_port)),
            *("--tenant-concurrency", str(num_streams + 1), "--max-concurrency", str(num_streams + 1)),
        ) as gateway_pid,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{gateway_port}/v1", timeout=300, limits=httpx.Limits(max_connections=None)
        ) as client,
        rpc.open_channel(f"127.0.0.1:{port}") as channel,
    ):
        await _until_healthy(client)
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(gateway_pid, cores[:1])
        for path in _BODIES:
            await _stream(client, path, 10)
            before_s = _cpu_s(gateway_pid)
            await _stream(client, path, num_events)
            name = path.partition("/")[0]
            result[f"cpu_per_event_us_{name}"] = (_cpu_s(gateway_pid) - before_s) / num_events * 1e6
        result["added_ttft_ms"] = await _added_ttft_ms(client, channel)
        result |= await _many(client, gateway_pid, num_streams)
    return result


async def _stream(client: httpx.AsyncClient, path: str, num_events: int, pace_s: float = 0.0) -> list[float]:
    """When each of the stream's parts came, by the monotonic clock."""
    body = {**_BODIES[path], "model": MODEL, "stream": True, "temperature": 1.0}
    headers = {"x-session-id": json.dumps({"events": num_events, "pace_s": pace_s})}
    times: list[float] = []
    async with client.stream("POST", path, json=body, headers=headers) as response:
        async for _ in response.aiter_raw():
            times.append(time.monotonic())
        assert response.status_code == 200, response.status_code
    return times


async def _added_ttft_ms(client: httpx.AsyncClient, channel: Any) -> float:
    """Paired: through the gateway, then straight to the tokenizer."""
    stub: Any = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
    request = tokenizer_pb2.GenerateRequest(
        model=MODEL,
        conversation=conversation_pb2.Conversation(
            messages=[
                conversation_pb2.Message(
                    role=conversation_pb2.ROLE_USER,
                    parts=[conversation_pb2.Part(text=conversation_pb2.TextPart(text="Hi"))],
                )
            ]
        ),
        routing=tokenizer_pb2.Routing(conversation_key=json.dumps({"events": 1, "pace_s": 0.0})),
    )
    added: list[float] = []
    for _ in range(50):
        start_s = time.monotonic()
        through_s = (await _stream(client, "chat/completions", 1))[0] - start_s
        start_s = time.monotonic()
        first_s = 0.0
        async for event in stub.Generate(request):
            if event.HasField("text_delta"):
                first_s = first_s or time.monotonic() - start_s
        added.append((through_s - first_s) * 1e3)
    return statistics.median(added)


async def _many(client: httpx.AsyncClient, gateway_pid: int, num_streams: int) -> dict[str, float]:
    start_s, before_s = time.monotonic(), _cpu_s(gateway_pid)
    streams = await asyncio.gather(*(_stream(client, "chat/completions", 200, _PACE_S) for _ in range(num_streams)))
    core_share = (_cpu_s(gateway_pid) - before_s) / (time.monotonic() - start_s)
    longest = [max(later - earlier for earlier, later in itertools.pairwise(times)) for times in streams]
    gaps = sorted(later - earlier for times in streams for earlier, later in itertools.pairwise(times))
    return {
        "stalled": float(sum(gap >= _STALL_S for gap in longest)),
        "gap_p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
        "core_share": core_share,
    }


class _Paced(ScriptedTokenizer):
    """Says a word as often and as fast as the request's conversation key asks."""

    async def Generate(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        asked = json.loads(request.routing.conversation_key)
        word = text(" word")
        yield admitted()
        for _ in range(asked["events"]):
            if asked["pace_s"]:
                await asyncio.sleep(asked["pace_s"])
            yield word
        yield finished()


async def _serve_script(port: int) -> None:
    async with _Paced().serving(port=port):
        await asyncio.Event().wait()


@asynccontextmanager
async def _process(module: str, *argv: str) -> AsyncGenerator[int]:
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "proto")))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *argv),
        env={**environ, "PYTHONPATH": path},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def _until_healthy(client: httpx.AsyncClient) -> None:
    deadline_s = time.monotonic() + 60
    root = str(client.base_url).removesuffix("/v1/")
    while True:
        try:
            if (await client.get(f"{root}/health")).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline_s:
            raise SystemExit("the gateway does not start")
        await asyncio.sleep(0.05)


def _cpu_s(pid: int) -> float:
    fields = re.sub(r"^.*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    main()
