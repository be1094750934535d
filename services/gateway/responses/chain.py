"""Stored responses, and the chains that ``previous_response_id`` makes of them.

A record holds what one request added: its own input items and its response, whole, in the client's own spelling, and
the ids of the responses before it. So a chain of n turns is n records, read in two steps however long it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from services.gateway.errors import BadRequestError, NotFoundError
from services.gateway.fields import Fields, wrong
from services.gateway.raw_json import RawJson
from services.gateway.records import Record, Records

_VERSION = 1
_RESPONSE, _ITEM = "response:", "item:"
_MAX_KEY_BYTES = 256
_log = logging.getLogger(__name__)


class PreviousResponseNotFoundError(BadRequestError):
    """``previous_response_id`` names nothing of this tenant's, or a chain that has lost a part. Codex starts anew."""

    status = "NOT_FOUND"
    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id[:200]}' not found.", param="previous_response_id")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One record. ``fields`` is all of it."""

    fields: Fields
    ancestors: tuple[str, ...]
    """Ids of the responses before it, the oldest first."""

    @property
    def response_json(self) -> str:
        """The response as it was sent."""
        return self.fields.raw("response")

    @property
    def input_items(self) -> list[Fields]:
        return list(self.fields.objects("input"))

    @property
    def items(self) -> list[Fields]:
        """What it adds to a conversation: input, then output."""
        return [*self.input_items, *self.fields.required_object("response").objects("output")]


@dataclass(frozen=True, slots=True)
class Chain:
    """The responses a request continues, the oldest first."""

    ids: tuple[str, ...] = ()
    items: tuple[Fields, ...] = ()


class Chains:
    """Chains in one or more stores, looked for in that order; kept in the first, for ``ttl_s`` seconds."""

    def __init__(self, stores: Sequence[Records], ttl_s: float) -> None:
        self._stores = stores
        self._ttl_s = ttl_s

    async def put(
        self, tenant: str, response: dict[str, Any], input_items: Sequence[dict[str, Any]], ancestors: Sequence[str]
    ) -> None:
        """Keep a finished response, and where each of its output items lies. Raises GatewayError."""
        value = orjson.dumps(
            {"v": _VERSION, "response": response, "input": list(input_items), "ancestors": list(ancestors)}
        )
        response_id: str = response["id"]
        for item in response["output"]:
            await self._stores[0].put(tenant, _ITEM + item["id"], response_id.encode(), self._ttl_s)
        # Last: whoever finds the response finds everything.
        await self._stores[0].put(tenant, _RESPONSE + response_id, value, self._ttl_s)

    async def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Raises NotFoundError, GatewayError."""
        found = await self._read(tenant, [response_id])
        if response_id not in found:
            raise NotFoundError(f"Response with id '{response_id[:200]}' not found.")
        return found[response_id]

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response in every store; whether there was one. Responses that continue it lose their chain."""
        stored = (await self._read(tenant, [response_id])).get(response_id)
        if stored is None:
            return False
        items = stored.fields.required_object("response").objects("output")
        keys = [_RESPONSE + response_id, *(_ITEM + str(item.values.get("id")) for item in items)]
        for store in self._stores:
            for key in keys:
                await store.delete(tenant, key)
        return True

    async def follow(self, tenant: str, response_id: str) -> Chain:
        """Everything up to this response. Raises PreviousResponseNotFoundError, GatewayError."""
        last = (await self._read(tenant, [response_id])).get(response_id)
        if last is None:
            raise PreviousResponseNotFoundError(response_id)
        found = await self._read(tenant, last.ancestors)
        if len(found) < len(last.ancestors):
            raise PreviousResponseNotFoundError(response_id)
        chain = [*(found[ancestor] for ancestor in last.ancestors), last]
        return Chain((*last.ancestors, response_id), tuple(item for stored in chain for item in stored.items))

    async def items_named(self, tenant: str, item_ids: Sequence[str]) -> dict[str, Fields]:
        """Output items of stored responses, by their ids; those that are not there are left out."""
        wanted = set(item_ids)
        places = await self._get(tenant, [_ITEM + item_id for item_id in wanted])
        response_ids = list(dict.fromkeys(record.value.decode(errors="replace") for record in places.values()))
        items: dict[str, Fields] = {}
        for stored in (await self._read(tenant, response_ids)).values():
            for item in stored.items:
                if (item_id := str(item.values.get("id"))) in wanted:
                    items[item_id] = item
        return items

    async def _read(self, tenant: str, response_ids: Sequence[str]) -> dict[str, StoredResponse]:
        records = await self._get(tenant, [_RESPONSE + response_id for response_id in response_ids])
        found: dict[str, StoredResponse] = {}
        for response_id in response_ids:
            record = records.get(_RESPONSE + response_id)
            stored = None if record is None else _decoded(record.value)
            if stored is not None:
                found[response_id] = stored
        return found

    async def _get(self, tenant: str, keys: Sequence[str]) -> dict[str, Record]:
        # Ours are short; what is longer could not be looked for.
        wanted = [key for key in keys if len(key.encode()) <= _MAX_KEY_BYTES]
        found: dict[str, Record] = {}
        for store in self._stores:
            missing = [key for key in wanted if key not in found]
            here = await store.get(tenant, missing) if missing else {}
            # A conversation that goes on keeps all of its chain, where it is.
            for key, record in here.items():
                if record.remaining_s < self._ttl_s / 2:
                    await store.put(tenant, key, record.value, self._ttl_s)
            found |= here
        return found


def _decoded(value: bytes) -> StoredResponse | None:
    """None for what another version, or nobody, has written."""
    try:
        fields = Fields(orjson.loads(value), RawJson(value))
        if fields.integer("v", 0, 2**31) != _VERSION:
            return None
        ancestors = fields.required("ancestors")
        if not isinstance(ancestors, list):
            raise wrong("ancestors", "a list", ancestors)
        stored = StoredResponse(fields, tuple(map(str, cast(list[Any], ancestors))))
        # Fails now rather than in the middle of an answer.
        _ = stored.items
    except (orjson.JSONDecodeError, BadRequestError, AttributeError) as error:
        _log.warning("a stored response cannot be read: %s", error)
        return None
    return stored
