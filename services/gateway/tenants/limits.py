"""How many requests are answered at once: by tenant, so that one cannot starve the others, and altogether."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from services.gateway.errors import RateLimitError, UnavailableError

_RETRY_AFTER_S = 1.0


class Limits:
    """Owned by the event loop's thread. A tenant without requests takes no memory."""

    def __init__(self, *, per_tenant: int, total: int) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._num_by_tenant = Counter[str]()
        self._num = 0

    @contextmanager
    def slot(self, tenant: str) -> Generator[None]:
        """Count a request from its start to the end of its answer, streamed or not, however it ends.

        Never waits. Raises RateLimitError when the tenant has too many already, UnavailableError when all have.
        """
        if self._num_by_tenant[tenant] >= self._per_tenant:
            raise RateLimitError(
                f"{self._per_tenant} requests of yours are being answered, the most at once; try again when one ends.",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self._num >= self._total:
            raise UnavailableError(
                "The server answers as many requests as it can; try again shortly.", retry_after_s=_RETRY_AFTER_S
            )
        self._num += 1
        self._num_by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._num -= 1
            self._num_by_tenant[tenant] -= 1
            if not self._num_by_tenant[tenant]:
                del self._num_by_tenant[tenant]

    def __len__(self) -> int:
        """How many tenants are remembered."""
        return len(self._num_by_tenant)
