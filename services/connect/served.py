"""What a running gateway serves, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_TIMEOUT_S = 10.0


class ConnectError(Exception):
    """What stops the command; the message is one line for people."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model at a gateway, and the key to use it with. ``url`` has no path; ``key`` is None where none is needed."""

    url: str
    model: str
    context_tokens: int
    key: str | None


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    context_tokens: int
    aliases: Sequence[str]
    """Patterns among them."""


def find(url: str, key: str | None, name: str | None) -> Target:
    """The model of this name, else the first one that is served. Raises ConnectError."""
    url = url.rstrip("/").removesuffix("/v1")
    models = _models(url, key)
    for model in models:
        if name in (None, model.name) or any(fnmatchcase(name, alias) for alias in model.aliases):
            return Target(url, model.name, model.context_tokens, key)
    raise ConnectError(f"{url} serves no model named {name}; it serves {', '.join(model.name for model in models)}")


def _models(url: str, key: str | None) -> Sequence[_Model]:
    """At least one."""
    if not url.startswith(("http://", "https://")):
        raise ConnectError(f"{url} is not an http:// or https:// address")
    try:
        models = [
            _Model(str(model["id"]), int(model["max_model_len"]), list(map(str, model["aliases"])))
            for model in _get(f"{url}/v1/models", key)["data"]
        ]
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise ConnectError(f"{url}/v1/models answered {error.code}") from None
        wish = "wants an API key; give it with --key" if key is None else "does not take this API key"
        raise ConnectError(f"{url} {wish}") from None
    except (OSError, http.client.HTTPException) as error:
        raise ConnectError(f"{url} does not answer: {getattr(error, 'reason', error)}") from None
    except (ValueError, KeyError, TypeError):
        raise ConnectError(f"{url} is no Fencepost gateway: it lists no models as one does") from None
    if not models:
        raise ConnectError(f"{url} serves no model")
    return models


def _get(url: str, key: str | None) -> Any:
    request = urllib.request.Request(url)
    if key is not None:
        request.add_header("authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return json.load(answer)
