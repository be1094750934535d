"""Slots for requests: given back on every path, and no memory of idle tenants."""

from __future__ import annotations

import asyncio

import pytest

from services.gateway.errors import RateLimitError, UnavailableError
from services.gateway.tenants.limits import Limits


def test_one_tenant_cannot_take_the_others_slots() -> None:
    limits = Limits(per_tenant=2, total=3)
    with limits.slot("a"), limits.slot("a"):
        with pytest.raises(RateLimitError) as refused, limits.slot("a"):
            pass
        assert (refused.value.http_status, refused.value.headers) == (429, {"retry-after": "1"})
        with limits.slot("b"):
            with pytest.raises(UnavailableError) as full, limits.slot("c"):
                pass
            assert (full.value.http_status, full.value.headers) == (503, {"retry-after": "1"})
        with limits.slot("c"):
            pass


def test_a_slot_comes_back_once_however_a_request_ends() -> None:
    limits = Limits(per_tenant=1, total=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="boom"), limits.slot("a"):
            raise ValueError("boom")
    with limits.slot("a"):
        # A refusal takes nothing and gives nothing back.
        for tenant, error in (("a", RateLimitError), ("b", UnavailableError)):
            with pytest.raises(error), limits.slot(tenant):
                pass
        with pytest.raises(RateLimitError), limits.slot("a"):
            pass
    with limits.slot("a"):
        pass


async def test_a_cancelled_request_gives_its_slot_back() -> None:
    limits = Limits(per_tenant=1, total=1)
    entered = asyncio.Event()

    async def hold() -> None:
        with limits.slot("a"):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with limits.slot("a"):
        pass


def test_idle_tenants_leave_no_entry() -> None:
    limits = Limits(per_tenant=1, total=1)
    for number in range(1000):
        with limits.slot(f"tenant-{number}"):
            assert len(limits) == 1
    assert len(limits) == 0
