"""Sends one more turn of a conversation to a gateway and checks where its prompt came from; standard library only.

The conversation is a JSON file that grows by the question and the answer. Exit status 1 when no text comes back, or
when fewer tokens come from the expected tier than the turn before had in its prompt.
Usage: next_turn.py URL FILE QUESTION [--from TIER]
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_S = 300.0


def main() -> int:
    """Raises OSError when the gateway cannot be reached or refuses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", help="the gateway, e.g. http://127.0.0.1:8000")
    parser.add_argument("file", type=Path, help="the conversation; created when missing")
    parser.add_argument("question")
    parser.add_argument("--from", dest="tier", choices=("vram", "ssd"), help="tier that cached tokens must come from")
    arguments = parser.parse_args()

    start: dict[str, Any] = {"messages": [], "prompt_tokens": 0}
    conversation: dict[str, Any] = json.loads(arguments.file.read_text()) if arguments.file.exists() else start
    messages = conversation["messages"]
    messages.append({"role": "user", "content": arguments.question})
    answer = post(
        f"{arguments.url}/v1/chat/completions",
        {"model": model_id(arguments.url), "messages": messages, "max_tokens": 48, "temperature": 0},
    )
    message, usage = answer["choices"][0]["message"], answer["usage"]
    messages.append({"role": "assistant", "content": message["content"]})
    arguments.file.write_text(json.dumps({"messages": messages, "prompt_tokens": usage["prompt_tokens"]}))

    cached = usage["prompt_tokens_details"]["cached_tokens_by_tier"]
    where = ", ".join(f"{tokens} from {tier}" for tier, tokens in cached.items())
    sys.stdout.write(f"> {arguments.question}\n{message['content']}\n")
    sys.stdout.write(f"[{usage['prompt_tokens']} prompt tokens: {where}; {usage['completion_tokens']} written]\n")
    if not message["content"]:
        sys.stderr.write("the answer is empty\n")
        return 1
    if arguments.tier is not None and cached.get(arguments.tier, 0) < conversation["prompt_tokens"]:
        sys.stderr.write(f"expected {conversation['prompt_tokens']} tokens or more from {arguments.tier}\n")
        return 1
    return 0


def model_id(url: str) -> str:
    """The only model that is served."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=TIMEOUT_S) as response:
        return str(json.load(response)["data"][0]["id"])


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The JSON answer to a JSON body."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main())
