"""One stream for the lines of several processes: each line stands behind its process's name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Final, TextIO

_COLOURS: Final = (36, 33, 35, 32, 34, 96, 93, 95)
_RESET: Final = "\x1b[0m"


class Console:
    """Writes ``engine-0  | the line`` with the names padded to one width.

    ``stream`` stays the caller's. A reader that has gone away silences the console and stops nothing.
    """

    def __init__(self, stream: TextIO, names: Iterable[str], *, has_colour: bool) -> None:
        self._stream = stream
        self._is_open = True
        names = tuple(names)
        width = max(map(len, names))
        self._prefix_by_name = {name: f"{name:<{width}} | " for name in names}
        if has_colour:
            for name, colour in zip(names, itertools.cycle(_COLOURS), strict=False):
                self._prefix_by_name[name] = f"\x1b[{colour}m{self._prefix_by_name[name]}{_RESET}"

    def write(self, name: str, text: str) -> None:
        """Write ``text``, which may have several lines; each gets the prefix."""
        self._put("".join(f"{self._prefix_by_name[name]}{line}\n" for line in text.split("\n")))

    def write_plain(self, text: str) -> None:
        """Write ``text`` as it is: for what people copy."""
        self._put(text + "\n")

    def _put(self, text: str) -> None:
        if not self._is_open:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            self._is_open = False
