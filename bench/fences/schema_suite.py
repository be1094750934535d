"""How the fences of JSON values stand to the JSON-Schema-Test-Suite.

``python -m bench.fences.schema_suite DIR [-v]``: DIR holds the suite's files of one draft, one file per keyword (the
sdist of ``jsonschema`` has them at ``json/tests/draft2020-12``). Prints one line of JSON with counts per keyword;
``-v`` lists on stderr what is wrong.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from bench.fences.forcing import first_illegal
from services.engine.fence.compile import CompiledFence
from services.engine.fence.json_text import START, canonical_table, unfinished_numbers
from services.engine.fence.machine import Fence
from services.engine.fence.program import Value
from tests.unit.engine.fence.small_fences import eos, program, small_compiler, small_tokens

_MAX_ORDERS = 24


class Outcome(StrEnum):
    """What a fence makes of an instance."""

    PASS = "pass"
    """Taken if valid, refused if not."""
    RELAXED = "relaxed"
    """Taken although invalid, by a fence that names what it does not enforce."""
    REFUSED = "wrong_refused"
    """Valid, and cannot be written."""
    TAKEN = "wrong_taken"
    """Invalid, and nothing says so."""
    NO_SPELLING = "no_spelling"
    """Not counted: the instance has no canonical spelling."""


def outcome(compiled: CompiledFence, instance: object, is_valid: bool) -> Outcome:
    """Of one test; objects are written in whatever order of their keys is taken."""
    texts = [text for text in _spellings(instance) if _is_canonical(text)]
    if not texts:
        return Outcome.NO_SPELLING
    is_taken = any(_is_taken(compiled, text) for text in texts)
    if is_taken == is_valid:
        return Outcome.PASS
    if not is_taken:
        return Outcome.REFUSED
    return Outcome.RELAXED if compiled.relaxed else Outcome.TAKEN


def _is_taken(compiled: CompiledFence, text: str) -> bool:
    fence = Fence(compiled)
    return first_illegal(fence, [*small_tokens().encode(text), eos()]) is None


def _spellings(instance: object) -> Iterator[str]:
    for ordered in itertools.islice(_orders(instance), _MAX_ORDERS):
        yield json.dumps(ordered, ensure_ascii=False)


def _orders(instance: object) -> Iterator[object]:
    if isinstance(instance, dict):
        fields = cast("dict[str, object]", instance)
        for keys in itertools.permutations(fields):
            for values in itertools.product(*(list(_orders(fields[key])) for key in keys)):
                yield dict(zip(keys, values, strict=True))
    elif isinstance(instance, list):
        for items in itertools.product(*(list(_orders(item)) for item in cast("list[object]", instance))):
            yield list(items)
    else:
        yield instance


def _is_canonical(text: str) -> bool:
    table = canonical_table()
    state = START
    try:
        for byte in text.encode():
            state = int(table[state, byte])
    except UnicodeEncodeError:
        return False
    return state != len(table) - 1 and not unfinished_numbers()[state]


def main(folder: Path, is_verbose: bool) -> None:
    counts: dict[str, Counter[Outcome]] = {}
    for path in sorted(folder.glob("*.json")):
        counts[path.stem] = Counter()
        for group in cast("list[dict[str, Any]]", json.loads(path.read_text())):
            compiled = small_compiler().compile(program(Value(json.dumps(group["schema"]))))
            for test in group["tests"]:
                found = outcome(compiled, test["data"], test["valid"])
                counts[path.stem][found] += 1
                if is_verbose and found in (Outcome.REFUSED, Outcome.TAKEN):
                    schema = {key: value for key, value in group["schema"].items() if key != "$schema"}
                    relaxed = [f"{one.path}:{one.keyword}" for one in compiled.relaxed]
                    print(path.stem, found, json.dumps(schema), json.dumps(test["data"]), relaxed, file=sys.stderr)
    total = sum(counts.values(), Counter[Outcome]())
    print(json.dumps({"bench": "schema_suite", "total": total, "keywords": counts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "-v" in sys.argv[2:])
