"""The gateway's HTTP surface: paths, and the shape of what goes wrong on the way to them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import orjson
from fastapi import APIRouter, FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services import replicas
from services.gateway import chat, completions, models
from services.gateway.body import read_object
from services.gateway.config import GatewaySettings
from services.gateway.edge import Edge
from services.gateway.errors import GatewayError, InternalError, MethodNotAllowedError, PathNotFoundError
from services.gateway.upstream import Tokenizer, Tokenizers

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?", re.ASCII)

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Gateway:
    """What every handler works with."""

    config: GatewaySettings
    tokenizers: Tokenizers


def build_app(config: GatewaySettings) -> FastAPI:
    """The ASGI application; its lifespan opens and closes the channels to the tokenizers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        timeout_s = config.request_timeout_s
        async with replicas.connect(config.tokenizers, Tokenizer, grace_s=timeout_s) as tokenizers:
            app.state.gateway = Gateway(config, Tokenizers(tokenizers, timeout_s=timeout_s))
            yield

    app = FastAPI(title="Fencepost", lifespan=lifespan, redirect_slashes=False, redoc_url=None)
    app.include_router(router)
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(Edge)
    return app


@router.post("/v1/chat/completions")
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(request: Request) -> Response:
    """OpenAI's Chat Completions, streamed or not."""
    gateway = _gateway(request)
    return await chat.respond(
        request,
        await read_object(request, gateway.config.max_body_bytes),
        gateway.tokenizers,
        request_id=request.state.request_id,
        metadata=_trace(request),
        keep_alive_s=gateway.config.keep_alive_s,
    )


@router.post("/v1/completions")
@router.post("/completions", include_in_schema=False)
async def text_completions(request: Request) -> Response:
    """OpenAI's older Completions: plain text that is continued, streamed or not."""
    gateway = _gateway(request)
    return await completions.respond(
        request,
        await read_object(request, gateway.config.max_body_bytes),
        gateway.tokenizers,
        request_id=request.state.request_id,
        metadata=_trace(request),
        keep_alive_s=gateway.config.keep_alive_s,
    )


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def list_models(request: Request) -> Response:
    """The models that are served."""
    return _json(models.model_list(await _gateway(request).tokenizers.list_models()))


@router.get("/v1/models/{model_id:path}")
@router.get("/models/{model_id:path}", include_in_schema=False)
async def get_model(request: Request, model_id: str) -> Response:
    """One model, by id or alias."""
    return _json(models.model_named(await _gateway(request).tokenizers.list_models(), model_id))


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when a tokenizer can serve, else 503; each replica's state either way."""
    states = await _gateway(request).tokenizers.health()
    if "SERVING" in states.values():
        return _json({"status": "ok", "tokenizers": states})
    silent = ", ".join(f"{address} ({state})" for address, state in states.items())
    return _json(
        {"status": "unavailable", "message": f"no tokenizer is serving: {silent}", "tokenizers": states},
        status=503,
        headers={"retry-after": "1"},
    )


@router.get("/")
async def root() -> Response:
    """What this is and where to go on."""
    return _json({"name": "fencepost", "chat": "/v1/chat/completions", "models": "/v1/models", "docs": "/docs"})


@router.head("/", include_in_schema=False)
async def root_head() -> Response:
    """Clients look whether somebody is there."""
    return Response()


@router.get("/metrics", include_in_schema=False)
async def metrics() -> Response:
    """Prometheus text."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def _gateway(request: Request) -> Gateway:
    return cast(Gateway, request.app.state.gateway)


def _trace(request: Request) -> tuple[tuple[str, str], ...]:
    """The request's W3C trace context, to be passed on; a malformed one is dropped, as its specification asks."""
    found = request.headers.get("traceparent", "")
    return (("traceparent", found),) if _TRACEPARENT.fullmatch(found) else ()


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return _json(error.openai_body(), status=error.http_status, headers=headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            found: GatewayError = PathNotFoundError(f"There is no {what}.")
        case 405:
            found = MethodNotAllowedError(f"{what} is not allowed.")
        case _:
            found = InternalError()
    return _json(found.openai_body(), status=found.http_status, headers=dict(error.headers or {}))


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers=headers, media_type="application/json")
