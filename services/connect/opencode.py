"""opencode: a provider in ``~/.config/opencode/opencode.json``."""

from __future__ import annotations

from services.connect.client import KEY_VARIABLE, NO_KEY, Client
from services.connect.json_file import merged
from services.connect.served import Target

_MAX_OUTPUT_TOKENS = 32_000


def merge(text: str, target: Target) -> str:
    """Raises ValueError."""
    name = f"fencepost/{target.model}"
    model = {
        "name": target.model,
        "limit": {
            "context": target.context_tokens,
            "output": min(_MAX_OUTPUT_TOKENS, max(1, target.context_tokens // 4)),
        },
        "tool_call": True,
        "reasoning": True,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Fencepost",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"},
        "models": {target.model: model},
    }
    schema = {"$schema": "https://opencode.ai/config.json"}
    return merged(text, {**schema, "model": name, "small_model": name, "provider": {"fencepost": provider}})


OPENCODE = Client(
    name="opencode",
    title="opencode",
    folder_variable="XDG_CONFIG_HOME",
    folder=".config",
    file="opencode/opencode.json",
    first_request_tokens=7_700,
    merge=merge,
    variables=lambda target: {KEY_VARIABLE: target.key or NO_KEY},
)
