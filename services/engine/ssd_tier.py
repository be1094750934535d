"""The disk tier as the engine uses it: look up before admission, decide, restore into blocks, empty.

State passes through threads of its own and never through the step loop's; blocks that are being filled belong to one
sequence. A failure shortens a hit; it never fails a request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import Counter, Histogram

from services.engine.request import MissReason, Request
from services.engine.restore import Means, Restore
from services.engine.restore_cost import PrefillCost, ReadCost
from services.engine.runtime.gate import LayerGate
from services.engine.runtime.paged import PagedRuntime
from services.engine.staging import Staging
from services.engine.store_calls import NoSharedMemory, StoreUnavailable
from services.engine.store_client import StoreClient, StoredPrefix, StoredRest
from services.engine.tiles import Owner
from services.identity import PAGE_TOKENS, page_key_secret, page_keys, state_namespace

_PAGE_FORMAT = 2
_NUMERICS = "paged-3"
_MIN_DEADLINE_S = 1.0
_PATIENCE = 2.0
"""Times the cost of computing a prefix again that a restore of it may take before it is given up."""
_log = logging.getLogger(__name__)
_RESTORES = Counter("fencepost_engine_restores_total", "Restores by outcome.", ["outcome"])
_RESTORED_TOKENS = Counter("fencepost_engine_restored_tokens_total", "Tokens whose state was read from the store.")
_RESTORE_SECONDS = Histogram("fencepost_engine_restore_seconds", "From the start of a restore to its end.")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What makes state interchangeable, beside the scope."""

    model_type: str
    weights_fingerprint: str
    tokenizer_fingerprint: str
    weight_format: str

    def keys_of(self, cache_scope: str, token_ids: bytes) -> list[bytes]:
        """Keys of a prompt's whole pages."""
        return page_keys(page_key_secret(cache_scope, self.tokenizer_fingerprint), token_ids)


@dataclass(frozen=True, slots=True)
class StoredHit:
    """A leased prefix of a prompt: all its pages from the first one on, and a part of what lies behind them.

    Which of them are read is decided when a restore begins: what was resident at the lookup may be gone by then.
    """

    lease_id: str
    num_tokens: int
    page_keys: tuple[bytes, ...]
    rest: StoredRest | None

    def owners(self, token_ids: bytes, resident_tokens: int) -> list[Owner]:
        """What is to be read where the first ``resident_tokens`` are in place already."""
        first_page = min(resident_tokens // PAGE_TOKENS, len(self.page_keys))
        behind = len(self.page_keys) * PAGE_TOKENS
        found = [
            _owner(key, None, i * PAGE_TOKENS, token_ids[i * PAGE_TOKENS * 4 : (i + 1) * PAGE_TOKENS * 4])
            for i, key in enumerate(self.page_keys)
            if i >= first_page
        ]
        if self.rest is not None:
            rest = self.rest
            found.append(_owner(rest.page_key, rest.manifest_id, behind, rest.token_ids, rest.num_tokens))
        if found and found[0].use_from < resident_tokens:
            found[0] = replace(found[0], use_from=resident_tokens)
        return [owner for owner in found if owner.use_from < owner.use_to]


@dataclass(frozen=True, slots=True)
class Restored:
    """How many leading tokens of a prompt are in place, and why not all that were hoped for."""

    num_tokens: int
    miss: MissReason | None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a lookup; ``is_short`` says that there is something, too little to be worth a read."""

    hit: StoredHit | None
    is_short: bool = False


class SsdTier:
    """One engine's use of one store. Methods run on the loop; bytes are copied in ``executor``."""

    def __init__(
        self,
        client: StoreClient,
        runtime: PagedRuntime,
        identity: ModelIdentity,
        executor: ThreadPoolExecutor,
        prefill_cost: PrefillCost,
        *,
        staging: Staging | None = None,
        min_restore_tokens: int,
        restore_timeout_s: float,
        always_restore: bool = False,
        pause: Callable[[float], float] = lambda worked_s: 0.0,
    ) -> None:
        """``always_restore`` takes no account of cost, at the deadline neither; ``pause`` turns seconds of work into
        seconds of rest."""
        self.num_leases = 0
        self.min_restore_tokens = min_restore_tokens
        self._means = Means(runtime, client, executor, staging, pause, self._hold)
        self._identity = identity
        self._prefill_cost = prefill_cost
        self._read_cost = ReadCost()
        self._restore_timeout_s = restore_timeout_s
        self._always_restore = always_restore
        self._lane = asyncio.Lock()
        self._held: set[asyncio.Task[None]] = set()

    def namespace(self, cache_scope: str) -> bytes:
        """Inside which state is interchangeable."""
        return state_namespace(
            cache_scope=cache_scope,
            model=self._identity.model_type,
            weights_fingerprint=self._identity.weights_fingerprint,
            weight_format=self._identity.weight_format,
            kv_dtype=self._means.runtime.layout.dtype,
            page_format=_PAGE_FORMAT,
            numerics=_NUMERICS,
        )

    def keys_of(self, cache_scope: str, token_ids: bytes) -> list[bytes]:
        """Keys of a prompt's whole pages."""
        return self._identity.keys_of(cache_scope, token_ids)

    async def lookup(self, request: Request, resident_tokens: int) -> Lookup:
        """What the store has beyond ``resident_tokens``, leased."""
        reusable = request.num_tokens - 1
        if reusable - resident_tokens < self.min_restore_tokens:
            return Lookup(None)
        ids = request.token_ids[: reusable * 4]
        keys = self.keys_of(request.cache_scope, ids)
        first_page = min(resident_tokens // PAGE_TOKENS, len(keys))
        behind = ids[first_page * PAGE_TOKENS * 4 :]
        match = self._means.client.match(self.namespace(request.cache_scope), keys, first_page, behind)
        asked = asyncio.create_task(match)
        try:
            # Not cancelled with its caller: what the store has leased by then must be given back.
            found = await asyncio.shield(asked)
        except StoreUnavailable as error:
            _log.warning("disk tier: no lookup: %s", error)
            return Lookup(None)
        except asyncio.CancelledError:
            self._hold(self._forget(asked))
            raise
        if not found.lease_id:
            return Lookup(None)
        self.num_leases += 1
        num_pages = min(found.pages_present, len(keys))
        rest = _usable_rest(found, ids[num_pages * PAGE_TOKENS * 4 :])
        num_tokens = num_pages * PAGE_TOKENS + (0 if rest is None else rest.num_tokens)
        hit = StoredHit(found.lease_id, num_tokens, tuple(keys[:num_pages]), rest)
        if num_tokens - resident_tokens < self.min_restore_tokens:
            self.release_soon(hit)
            return Lookup(None, is_short=num_tokens > resident_tokens)
        return Lookup(hit)

    def is_worth_restoring(self, resident_tokens: int, stored_tokens: int) -> bool:
        """Whether reading is done sooner than computing, behind all restores that wait already."""
        return self._is_worth_reading(resident_tokens, stored_tokens, self._read_cost.pending_bytes)

    def release_soon(self, hit: StoredHit) -> None:
        """Give the lease back in the background."""
        self._hold(self._release(hit))

    async def restore(
        self, request: Request, hit: StoredHit, block_ids: Sequence[int], resident_tokens: int, gate: LayerGate
    ) -> Restored:
        """Fill blocks behind ``resident_tokens``.

        Blocks below ``resident_tokens`` are shared and are not written. One restore at a time reads; the others wait.
        Releases the lease on every path.
        """
        owners = hit.owners(request.token_ids, resident_tokens)
        num_bytes = self._num_bytes(owners)
        self._read_cost.pending_bytes += num_bytes
        started_s = time.monotonic()
        in_place = resident_tokens
        try:
            async with self._lane:
                # What the restores before this one have shown may have changed the answer.
                if not self._is_worth_reading(resident_tokens, hit.num_tokens, 0):
                    _RESTORES.labels("skipped").inc()
                    return Restored(resident_tokens, MissReason.RESTORE_SKIPPED)
                num_usable = await self._run(self.namespace(request.cache_scope), hit, owners, block_ids, gate)
                if num_usable:
                    in_place = owners[num_usable - 1].use_to
        except (StoreUnavailable, ValueError) as error:
            _log.warning("disk tier: a restore of %d tokens failed: %s", hit.num_tokens - resident_tokens, error)
        except TimeoutError:
            _log.warning("disk tier: a restore of %d tokens took too long", hit.num_tokens - resident_tokens)
        finally:
            gate.fail()
            self._read_cost.pending_bytes -= num_bytes
            self.release_soon(hit)
        _RESTORES.labels("whole" if in_place == hit.num_tokens else "short").inc()
        _RESTORED_TOKENS.inc(in_place - resident_tokens)
        _RESTORE_SECONDS.observe(time.monotonic() - started_s)
        return Restored(in_place, None if in_place == hit.num_tokens else MissReason.RESTORE_FAILED)

    async def delete(self, cache_scopes: Iterable[str], namespaces: Iterable[bytes]) -> int:
        """Remove all state of scopes and namespaces, of all scopes of this model where none is named; bytes removed.

        Raises StoreUnavailable.
        """
        wanted = [*namespaces, *(self.namespace(scope) for scope in cache_scopes)]
        if not wanted:
            return await self._means.client.delete(layout=self.namespace("")[:16])
        return sum([await self._means.client.delete(namespace=namespace) for namespace in dict.fromkeys(wanted)])

    async def delete_states(self, cache_scope: str, manifest_ids: Iterable[bytes]) -> None:
        """Remove terminal states of a scope, and the pages that no others use. Raises StoreUnavailable."""
        for manifest_id in manifest_ids:
            await self._means.client.delete_state(self.namespace(cache_scope), manifest_id)

    async def close(self) -> None:
        """Wait for what goes on in the background, then remove the lent memory."""
        while self._held:
            await asyncio.wait(self._held)
        if self._means.staging is not None:
            self._means.staging.close()

    def _num_bytes(self, owners: Sequence[Owner]) -> int:
        return sum(owner.num_tokens for owner in owners) * self._means.runtime.layout.bytes_per_token

    def _is_worth_reading(self, first: int, last: int, bytes_before: int) -> bool:
        if self._always_restore:
            return True
        num_bytes = bytes_before + (last - first) * self._means.runtime.layout.bytes_per_token
        return self._read_cost.seconds(num_bytes) < self._prefill_cost.seconds(first, last)

    async def _run(
        self, namespace: bytes, hit: StoredHit, owners: Sequence[Owner], block_ids: Sequence[int], gate: LayerGate
    ) -> int:
        """How many owners, from the first on, are in place."""
        timeout_s = self._restore_timeout_s
        if not self._always_restore:
            patience_s = _PATIENCE * self._prefill_cost.seconds(owners[0].use_from, owners[-1].use_to)
            timeout_s = min(timeout_s, max(_MIN_DEADLINE_S, patience_s))
        began_s = time.monotonic()
        restore = Restore(self._means, owners, block_ids, gate)
        try:
            await restore.run(namespace, hit.lease_id, timeout_s)
        except NoSharedMemory as error:
            _log.warning("disk tier: state goes through the socket: the store cannot reach shared memory: %s", error)
            if self._means.staging is not None:
                self._means.staging.close()
            self._means = replace(self._means, staging=None)
            restore = Restore(self._means, owners, block_ids, gate)
            await restore.run(namespace, hit.lease_id, timeout_s)
        except TimeoutError:
            self._read_cost.observe(self._num_bytes(owners), time.monotonic() - began_s, is_whole=False)
            raise
        self._read_cost.observe(restore.num_bytes, time.monotonic() - began_s)
        return restore.num_usable

    async def _forget(self, asked: asyncio.Task[StoredPrefix]) -> None:
        """Give back the lease of a lookup that nobody waits for any more."""
        with suppress(StoreUnavailable):
            if lease_id := (await asked).lease_id:
                await self._means.client.release(lease_id)

    async def _release(self, hit: StoredHit) -> None:
        self.num_leases -= 1
        await self._means.client.release(hit.lease_id)

    def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._held.add(task)
        task.add_done_callback(self._held.discard)


def _owner(
    page_key: bytes | None, manifest_id: bytes | None, first: int, token_ids: bytes, num_wanted: int | None = None
) -> Owner:
    num_tokens = len(token_ids) // 4 if num_wanted is None else num_wanted
    return Owner(page_key, manifest_id, first, token_ids, first, first + num_tokens)


def _usable_rest(found: StoredPrefix, token_ids: bytes) -> StoredRest | None:
    """What lies behind the whole pages, as far as it is the prompt's: the store is not taken at its word."""
    rest = found.rest
    if rest is None or not 0 < len(rest.token_ids) <= PAGE_TOKENS * 4 or len(rest.token_ids) % 4:
        return None
    end = 4 * rest.num_tokens
    return rest if 0 < end <= len(token_ids) and rest.token_ids[:end] == token_ids[:end] else None
