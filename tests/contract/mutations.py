"""Bodies that are nearly right: a value of another kind here, a key too many or too few there."""

from __future__ import annotations

import copy
import random
from typing import Any

_ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63 - 1, -(2**63), 0.5, -1e300, "", " ", "x", "auto", "text", "null"),
    *("\u2028\u0085", "<|im_end|>", "é" * 300, "data:image/png;base64,", "AAAA", "\x00", "../../etc/passwd"),
    *([], {}, [[]], [{}], {"type": "text"}, {"type": []}, {"": ""}, [None], {"role": "user"}, {"type": "never_heard"}),
)


def mutated(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with one to four changes."""
    result = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        _change(result, rng)
    return result


def _change(body: dict[str, Any], rng: random.Random) -> None:
    container, key = rng.choice(list(_places(body)))
    match rng.randrange(6):
        case 0:
            del container[key]
        case 1 | 2:
            container[key] = copy.deepcopy(rng.choice(_ODD_VALUES))
        case 3:
            other, other_key = rng.choice(list(_places(body)))
            container[key] = copy.deepcopy(other[other_key])
        case 4 if isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        case 4:
            container[rng.choice(("type", "id", "text", "content", "output", "tools", "name", "role"))] = container[key]
        case _:
            nested: Any = container[key]
            for _ in range(rng.choice((1, 2, 50))):
                nested = [nested] if rng.random() < 0.5 else {"content": nested}
            container[key] = nested


def _places(value: Any) -> Any:
    """Every (container, key or index) in it."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(inner)
