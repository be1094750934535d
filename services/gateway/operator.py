"""The operator's own pages, on an address of their own: metrics, health, and why a prompt missed the cache."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from fastapi import FastAPI, Request
from fencepost.tokenizer.v1 import tokenizer_pb2
from google.protobuf.json_format import MessageToDict
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from services.gateway.body import read_object
from services.gateway.edge import Edge
from services.gateway.error_response import response_of
from services.gateway.errors import GatewayError, UnavailableError
from services.gateway.upstream import Tokenizers

_LONGEST_BODY_BYTES = 64 * 2**10


def build_operator(tokenizers: Callable[[], Tokenizers | None]) -> FastAPI:
    """The ASGI application. ``tokenizers`` gives None until the gateway has opened its channels.

    It asks for no key: whoever reaches its address is trusted with every tenant's statistics and, through
    explanations, with pieces of prompts.
    """
    app = FastAPI(title="Fencepost operator", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    def found() -> Tokenizers:
        if (opened := tokenizers()) is None:
            raise UnavailableError("The gateway is starting.")
        return opened

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction]
        # A supervisor asks: a gateway is not to be started again because an engine loads.
        states = await found().health()
        is_serving = "SERVING" in states.values()
        body = {"status": "ok" if is_serving else "unavailable", "tokenizers": states}
        return _json(body, 200 if is_serving else 503)

    @app.post("/explain")
    async def explain(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        body = await read_object(request, _LONGEST_BODY_BYTES)
        asked = tokenizer_pb2.ExplainPrefixRequest(
            model=body.required_text("model"),
            routing=tokenizer_pb2.Routing(tenant=body.required_text("tenant")),
            response_id=body.required_text("response_id"),
        )
        answer = await found().explain(asked)
        return _json(MessageToDict(answer, preserving_proto_field_name=True))

    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_middleware(Edge)
    return app


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return response_of(error, request)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
