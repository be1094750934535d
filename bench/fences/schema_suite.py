"""How the fences of JSON values stand to the JSON-Schema-Test-Suite.

``python -m bench.fences.schema_suite DIR [-v]``: DIR holds the suite's files of draft 2020-12, one per keyword (the
sdist of ``jsonschema`` has them at ``json/tests/draft2020-12``). Prints one line of JSON with counts per keyword;
``-v`` lists on stderr what is wrong.

The standard has two modes for ``format``: an annotation that refuses nothing, or an assertion. Fences assert, so it is
measured as such, by the suite's own files for that mode (``optional/format``). The tests of ``format.json`` that say
that something is only an annotation contradict it; they are left out, and named in the output.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from bench.fences.forcing import first_illegal
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.json_text import START, canonical_table, unfinished_numbers
from services.engine.fence.machine import Fence
from services.engine.fence.program import Value
from tests.unit.engine.fence.small_fences import eos, program, small_compiler, small_tokens

_MAX_ORDERS = 24
_ANNOTATION = " is only an annotation by default"


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


@dataclass
class Report:
    """What came of the suite's files."""

    counts: dict[str, Counter[Outcome]] = field(default_factory=dict[str, Counter[Outcome]])
    """By keyword; ``format/<name>`` for each format."""
    left_out: list[str] = field(default_factory=list[str])
    """Tests that hold in the other mode of ``format`` only."""
    wrong: list[str] = field(default_factory=list[str])

    def run(self, name: str, groups: list[dict[str, Any]]) -> None:
        """One file's tests."""
        counts = self.counts[name] = Counter()
        for group in groups:
            compiled = small_compiler().compile(program(Value(json.dumps(group["schema"]))))
            for test in group["tests"]:
                if test["description"].endswith(_ANNOTATION):
                    self.left_out.append(f"{name}: {test['description']}")
                    continue
                found = outcome(compiled, test["data"], test["valid"])
                counts[found] += 1
                if found in (Outcome.REFUSED, Outcome.TAKEN):
                    schema = {key: value for key, value in group["schema"].items() if key != "$schema"}
                    self.wrong.append(f"{name} {found} {json.dumps(schema)} {json.dumps(test['data'])}")

    def as_json(self) -> dict[str, object]:
        """With the totals."""
        total = sum(self.counts.values(), Counter[Outcome]())
        return {
            "bench": "schema_suite",
            "total": total,
            "wrong": len(self.wrong),
            "left_out": self.left_out,
            "keywords": self.counts,
        }


def measure(folder: Path) -> Report:
    """``folder`` is that of one draft. Raises OSError."""
    report = Report()
    for path in sorted(folder.glob("*.json")):
        report.run(path.stem, json.loads(path.read_text()))
    for path in sorted((folder / "optional" / "format").glob("*.json")):
        report.run(f"format/{path.stem}", json.loads(path.read_text()))
    return report


if __name__ == "__main__":
    found = measure(Path(sys.argv[1]))
    if "-v" in sys.argv[2:]:
        print(*found.wrong, sep="\n", file=sys.stderr)
    print(json.dumps(found.as_json()))
