"""Requests as the gateway's parsers get them, without a server."""

from __future__ import annotations

from typing import Any, cast

import orjson
from starlette.requests import Request

from services.gateway.config import GatewaySettings
from services.gateway.exchange import Exchange, Gateway
from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.records import MemoryRecords
from services.gateway.served_models import ServedModels
from services.gateway.tenants.caller import DEFAULT, Caller
from services.gateway.tenants.key_ring import KeyRing
from services.gateway.tenants.limits import Limits
from services.gateway.toolsets import Toolsets
from services.gateway.upstream import Tokenizers


def exchange_of(
    body: bytes,
    headers: dict[str, str] | None = None,
    caller: Caller = DEFAULT,
    values: dict[str, Any] | None = None,
    toolsets: Toolsets | None = None,
) -> Exchange:
    """A request with this JSON body, at a gateway without tokenizers.

    ``values`` is what the body holds, for what no JSON parser reads.
    """
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    request = Request({"type": "http", "headers": pairs, "state": {"request_id": "req_1"}})
    nobody = cast(Tokenizers, None)
    gateway = Gateway(
        GatewaySettings(),
        nobody,
        ServedModels(nobody, ()),
        MemoryRecords(2**20),
        toolsets or Toolsets(),
        KeyRing(None, is_required=False),
        Limits(per_tenant=1, total=1),
    )
    return Exchange(gateway, request, caller, Fields(values or orjson.loads(body), RawJson(body)))
