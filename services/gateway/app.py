"""The gateway's HTTP surface: paths, and the shape of what goes wrong on the way to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services import replicas
from services.gateway import chat, completions, models, openapi, records
from services.gateway.config import GatewaySettings
from services.gateway.edge import Edge
from services.gateway.error_response import response_of
from services.gateway.errors import GatewayError, InternalError, MethodNotAllowedError, PathNotFoundError
from services.gateway.exchange import Gateway, gateway_of, read_exchange
from services.gateway.messages.endpoints import router as messages_router
from services.gateway.responses.endpoints import router as responses_router
from services.gateway.served_models import ServedModels
from services.gateway.tenants.gate import Gate
from services.gateway.tenants.key_ring import KeyRing
from services.gateway.tenants.limits import Limits
from services.gateway.toolsets import Toolsets
from services.gateway.upstream import Tokenizer, Tokenizers

router = APIRouter()


def build_app(config: GatewaySettings) -> FastAPI:
    """The ASGI application; its lifespan opens and closes the channels to the services behind. Raises KeyFileError."""
    keys = KeyRing(config.keys_file, is_required=config.needs_keys)
    limits = Limits(per_tenant=config.tenant_concurrency, total=config.max_concurrency)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        timeout_s = config.request_timeout_s
        async with (
            replicas.connect(config.tokenizers, Tokenizer, grace_s=timeout_s) as found,
            records.connect(config.records) as kept,
        ):
            tokenizers = Tokenizers(found, timeout_s=timeout_s)
            app.state.gateway = Gateway(
                config, tokenizers, ServedModels(tokenizers, config.model_aliases), kept, Toolsets(), keys, limits
            )
            yield

    app = FastAPI(title="Fencepost", lifespan=lifespan, redirect_slashes=False, redoc_url=None)
    for protocol in (router, responses_router, messages_router):
        app.include_router(protocol)
    app.add_exception_handler(GatewayError, _on_gateway_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(Gate, keys=keys, limits=limits)
    app.add_middleware(Edge)
    return app


@router.post("/v1/chat/completions", openapi_extra=openapi.CHAT)
@router.post("/chat/completions", include_in_schema=False)
async def chat_completions(request: Request) -> Response:
    """OpenAI's Chat Completions, streamed or not."""
    return await chat.respond(request, await read_exchange(request))


@router.post("/v1/completions", openapi_extra=openapi.COMPLETIONS)
@router.post("/completions", include_in_schema=False)
async def text_completions(request: Request) -> Response:
    """OpenAI's older Completions: plain text that is continued, streamed or not."""
    return await completions.respond(request, await read_exchange(request))


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def list_models(request: Request) -> Response:
    """The models that are served."""
    return _json(models.model_list(await gateway_of(request).models.all()))


@router.get("/v1/models/{model_id:path}")
@router.get("/models/{model_id:path}", include_in_schema=False)
async def get_model(request: Request, model_id: str) -> Response:
    """One model, by id or alias."""
    return _json(models.model_object(await gateway_of(request).models.named(model_id)))


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when a request would be answered, else 503; who is missing is no client's business."""
    if await gateway_of(request).tokenizers.can_answer():
        return _json({"status": "ok"})
    message = "no model is ready to answer; try again shortly"
    return _json({"status": "unavailable", "message": message}, status=503, headers={"retry-after": "1"})


@router.get("/")
async def root() -> Response:
    """What this is and where to go on."""
    return _json({"name": "fencepost", "chat": "/v1/chat/completions", "models": "/v1/models", "docs": "/docs"})


@router.head("/", include_in_schema=False)
async def root_head() -> Response:
    """Clients look whether somebody is there."""
    return Response()


async def _on_gateway_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatewayError)
    return response_of(error, request)


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
    return response_of(found, request, headers=error.headers)


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers=headers, media_type="application/json")
