"""How long ``fencepost up`` takes until it is healthy, and whether the first answer is as fast as the second.

The whole stack on a new data directory, with the model's files in the page cache from the first round on. The last line
is one JSON object: seconds, medians over rounds.

    python -m bench.startup [--json] [--rounds 3]

healthy_s: from starting the command until it says that all services are. first_ttft_s, second_ttft_s: to the first
event of the first and of the second completion, other prompts of the same length.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time

import httpx

from bench.gateway import free_port

_MODEL = "smollm2-135m-instruct"
_PROMPT_WORDS = 100
_TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the stack takes to start.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: list[dict[str, float]] = []
    for _ in range(options.rounds):
        found.append(asyncio.run(_round()))
        if not options.json:
            print(found[-1], flush=True)
    print(json.dumps({name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}))


async def _round() -> dict[str, float]:
    port = free_port()
    with tempfile.TemporaryDirectory() as data_dir:
        began_s = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services", "up", "--data-dir", data_dir),
            *("--port", str(port), "--operator-port", str(free_port())),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(_ready(process), _TIMEOUT_S)
            result = {"healthy_s": time.perf_counter() - began_s}
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=_TIMEOUT_S) as client:
                for name in ("first", "second"):
                    result[f"{name}_ttft_s"] = await _ttft_s(client, f"{name} " * _PROMPT_WORDS)
            return result
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def _ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if b"Ready after" in line:
            return
    raise SystemExit("fencepost up ended before it was ready")


async def _ttft_s(client: httpx.AsyncClient, prompt: str) -> float:
    began_s = time.perf_counter()
    body = {"model": _MODEL, "prompt": prompt, "max_tokens": 4, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.is_error:
            raise RuntimeError(f"{response.status_code} {(await response.aread()).decode()[:500]}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                return time.perf_counter() - began_s
    raise RuntimeError("an answer without an event")


if __name__ == "__main__":
    main()
