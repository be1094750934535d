"""How many bytes the store holds, has promised, and may hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """Owned by the event loop. ``reserved_bytes`` are promised to writers whose rows are not committed yet."""

    cap_bytes: int
    state_bytes: int = 0
    record_bytes: int = 0
    reserved_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        """Pages, tails, boundaries, manifests and records that are committed."""
        return self.state_bytes + self.record_bytes

    def excess(self, num_bytes: int) -> int:
        """Bytes to be freed before ``num_bytes`` more fit; 0 when they do."""
        return max(0, self.used_bytes + self.reserved_bytes + num_bytes - self.cap_bytes)
