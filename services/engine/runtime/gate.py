"""Which layers of a state that is being filled are in place: what a forward over it waits for.

The filler opens layer after layer, each as soon as all its bytes are there; a forward waits before each layer for that
layer alone. On CPU this is a condition between threads.
"""

import threading
import time
from collections.abc import Callable

LAYER_TIMEOUT_S = 1.0
"""How long a forward waits for one layer: everything else waits for the forward."""


class LayersMissing(Exception):
    """A layer did not come: the state is shorter than was hoped for, or late. Nothing of the forward may be used."""


class LayerGate:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_open = 0
        self._is_failed = False
        self.on_open: Callable[[], None] | None = None
        """Called when the first layer is in place, by the thread that opens it."""

    @property
    def num_open(self) -> int:
        """Leading layers in place."""
        return self._num_open

    def open(self, num_layers: int) -> None:
        """The first ``num_layers`` layers are in place."""
        with self._changed:
            is_first = not self._num_open and num_layers > 0
            self._num_open = max(self._num_open, num_layers)
            self._changed.notify_all()
        if is_first and self.on_open is not None:
            self.on_open()

    def fail(self) -> None:
        """No further layer will come; who waits for one is told. Layers that are open stay so."""
        with self._changed:
            self._is_failed = True
            self._changed.notify_all()

    def wait(self, layer: int, timeout_s: float) -> None:
        """Return when ``layer`` is in place. Raises LayersMissing."""
        if layer < self._num_open:
            return
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while layer >= self._num_open:
                left_s = deadline_s - time.monotonic()
                if self._is_failed or left_s <= 0:
                    raise LayersMissing(f"layer {layer} of {'a failed' if self._is_failed else 'a slow'} restore")
                self._changed.wait(left_s)
