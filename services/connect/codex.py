"""Codex CLI: a model provider in ``~/.codex/config.toml``."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError

from services.connect.client import KEY_VARIABLE, NO_KEY, Client
from services.connect.served import Target


def merge(text: str, target: Target) -> str:
    """Raises ValueError."""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ValueError(str(error)) from None
    document["model"] = target.model
    document["model_provider"] = "fencepost"
    # It compacts by this; without it, it assumes a far longer context.
    document["model_context_window"] = target.context_tokens
    providers: object = document.setdefault("model_providers", tomlkit.table(is_super_table=True))
    if not isinstance(providers, MutableMapping):
        raise ValueError("model_providers in it is no table")
    cast(MutableMapping[str, Any], providers)["fencepost"] = {
        "name": "Fencepost",
        "base_url": f"{target.url}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
        "supports_websockets": True,
    }
    return tomlkit.dumps(document)


CODEX = Client(
    name="codex",
    title="Codex",
    folder_variable="CODEX_HOME",
    folder=".codex",
    file="config.toml",
    first_request_tokens=9_200,
    merge=merge,
    variables=lambda target: {KEY_VARIABLE: target.key or NO_KEY},
)
