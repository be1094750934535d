"""The responses that this gateway is making, so that whoever knows an id can end one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

Cancel = Callable[[], Awaitable[dict[str, Any]]]
"""Ends a response, and gives it as it is then."""


class Running:
    """Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._cancel_by_id: dict[tuple[str, str], Cancel] = {}

    @contextmanager
    def entered(self, tenant: str, response_id: str, cancel: Cancel) -> Generator[None]:
        """Let a response be cancelled in the meantime."""
        self._cancel_by_id[tenant, response_id] = cancel
        try:
            yield
        finally:
            del self._cancel_by_id[tenant, response_id]

    async def cancel(self, tenant: str, response_id: str) -> dict[str, Any] | None:
        """The response as it was cut off; None when it is not being made here. Raises GatewayError."""
        cancel = self._cancel_by_id.get((tenant, response_id))
        return None if cancel is None else await cancel()
