"""How the tests' texts become ids."""

from collections.abc import Callable

Encode = Callable[[str], list[int]]
