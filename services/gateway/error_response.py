"""A failure as an HTTP response, in the shape of the protocol whose path was asked."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import HTTPConnection
from starlette.responses import Response

from services.gateway.errors import GatewayError


def response_of(error: GatewayError, connection: HTTPConnection, headers: Mapping[str, str] | None = None) -> Response:
    """Anthropic's shape below ``/messages``, OpenAI's elsewhere."""
    if connection.url.path.removeprefix("/v1").startswith("/messages"):
        status, body = error.anthropic_status, error.anthropic_body(connection.state.request_id)
    else:
        status, body = error.http_status, error.openai_body()
    return Response(
        orjson.dumps(body), status, headers={**(headers or {}), **error.headers}, media_type="application/json"
    )
