"""What tokenizing adds to the time to the first token, late in a session: token cache on against off.

A tokenizer service of each kind, over gRPC, before one engine that answers at once; both get every turn of one session,
30 of them, in changing order. The last line is one JSON object: milliseconds from the call to the first event of the
last turns, medians over rounds, and their ratio.

    python -m bench.ttft [--json] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

from fencepost.engine.v1 import engine_pb2
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from tokenizers import Tokenizer

from bench.corpus.session import turns
from services import rpc
from services.identity import tokenizer_fingerprint
from services.models.store import resolve
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from tests.contract.scripted_engine import ScriptedEngine

_MODEL = "smollm2-135m-instruct"
_LAST_TURNS = 3
_ROLES = {
    "system": conversation_pb2.ROLE_SYSTEM,
    "user": conversation_pb2.ROLE_USER,
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    "tool": conversation_pb2.ROLE_USER,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What tokenizing adds to the time to the first token.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [asyncio.run(_round(seed)) for seed in range(options.rounds)]
    if not options.json:
        for found in rounds:
            print(found, flush=True)
    on, off = (statistics.median(found[kind] for found in rounds) for kind in ("on", "off"))
    result = {"ttft_on_ms": round(on, 2), "ttft_off_ms": round(off, 2), "off_over_on": round(off / on, 1)}
    print(json.dumps(result | {"prompt_tokens": int(rounds[-1]["tokens"])}))


async def _round(seed: int) -> dict[str, float]:
    model_dir = resolve(_MODEL)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    finished = engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_STOP)
    script = [
        engine_pb2.GenerateResponse(admitted=engine_pb2.Admitted()),
        engine_pb2.GenerateResponse(finished=finished),
    ]
    engine = ScriptedEngine(tokenizer_fingerprint(model_dir), script, context_tokens=10**6)
    times: dict[str, list[float]] = {"on": [], "off": []}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.serving())
        stubs: dict[str, Any] = {}
        for kind in times:
            server = rpc.new_server()
            settings = TokenizerSettings(
                model=model_dir, model_name=_MODEL, engines=(engine.address,), prefix_token_cache=kind == "on"
            )
            await stack.enter_async_context(build(settings, server))
            port = rpc.bind(server, "127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, 1)
            channel = await stack.enter_async_context(rpc.open_channel(f"127.0.0.1:{port}"))
            stubs[kind] = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        histories = list(turns(tokenizer, seed))
        for turn, history in enumerate(histories):
            for kind in ("on", "off") if turn % 2 else ("off", "on"):
                elapsed_ms = await _first_event_ms(stubs[kind], history)
                if turn >= len(histories) - _LAST_TURNS:
                    times[kind].append(elapsed_ms)
        num_tokens = len(engine.requests[-1].token_ids) // 4
    return {kind: statistics.median(found) for kind, found in times.items()} | {"tokens": num_tokens}


async def _first_event_ms(stub: Any, history: Any) -> float:
    request = tokenizer_pb2.GenerateRequest(
        model=_MODEL,
        conversation=conversation_pb2.Conversation(
            messages=[
                conversation_pb2.Message(
                    role=_ROLES[message.role],
                    parts=[conversation_pb2.Part(text=conversation_pb2.TextPart(text=message.content))],
                )
                for message in history
            ]
        ),
        routing=tokenizer_pb2.Routing(tenant="bench", conversation_key="session"),
    )
    started = time.perf_counter()
    elapsed_ms = 0.0
    async for _ in stub.Generate(request):
        elapsed_ms = elapsed_ms or (time.perf_counter() - started) * 1e3
    return elapsed_ms


if __name__ == "__main__":
    main()
