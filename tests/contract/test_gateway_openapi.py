"""Requests generated from the OpenAPI document: none makes the gateway fail."""

from __future__ import annotations

import os
from typing import Any, cast

import httpx
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.schemas import APIOperation

from tests.contract.gateway_server import gateway_at
from tests.contract.scripted_tokenizer import ScriptedTokenizer

NUM_CASES = 500 if os.environ.get("FENCEPOST_SOAK") else 20


async def test_no_documented_request_makes_the_gateway_fail() -> None:
    async with (
        ScriptedTokenizer().serving() as tokenizer,
        gateway_at(tokenizer.address) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        schema = schemathesis.openapi.from_dict((await client.get("/openapi.json")).json())
        operations = [cast(Any, found).ok() for found in schema.get_all_operations()]
        assert {operation.path for operation in operations} >= {
            *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"),
            *("/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens", "/v1/responses/{response_id}"),
            *("/v1/models", "/v1/models/{model_id}", "/health"),
        }
        for operation in operations:
            for case in _cases_of(operation):
                request = case.as_transport_kwargs(base_url=url)
                request.pop("cookies", None)
                response = await client.request(**request)
                assert response.status_code < 500, (operation.label, response.status_code, response.text)


def _cases_of(operation: APIOperation[Any, Any, Any, Any]) -> list[Any]:
    cases: list[Any] = []

    @settings(
        max_examples=NUM_CASES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy())
    def collect(case: Any) -> None:
        cases.append(case)

    collect()
    return cases
