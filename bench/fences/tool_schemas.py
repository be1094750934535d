"""Whether the tools of a public collection can be fenced, in each dialect.

``python -m bench.fences.tool_schemas DIR [-v]``: DIR is the folder ``bfcl_eval/data`` of the package bfcl-eval. Each
distinct tool is one program, with a call required, compiled for the default model's tokenizer. Prints one line of JSON:
by dialect how many are enforced whole (``whole``), how many name something that is not (``relaxed``), and how many do
not compile (``failed``); ``-v`` lists on stderr what failed and the keywords that are not enforced.

The collection writes types as Python does; they are mapped to JSON Schema's, and what it calls ``any`` has none.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.fences.vocabularies import compiler, marker_ids
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.errors import FenceError
from services.engine.fence_fields import read_program
from services.models.store import resolve
from services.tokenizer.conversation import Conversation, Message, Role, ToolMode
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.fence_messages import write_program
from tests.unit.engine.fence.real_dialects import DIALECTS

_NAMES = {
    "object": "dict HashMap Hashtable",
    "array": "list tuple ArrayList Array Queue Stack",
    "number": "float double",
    "integer": "int long short byte Bigint",
    "string": "str String char",
    "boolean": "bool Boolean",
}
_JSON_TYPES = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_KNOWN = frozenset({*_NAMES, "null"})


@dataclass(slots=True)
class Report:
    """Counts by dialect; ``failed`` is a line for each tool that does not compile."""

    counts: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    keywords: Counter[str] = field(default_factory=Counter[str])
    failed: list[str] = field(default_factory=list[str])

    def run(self, dialect: Dialect, tools: list[ToolSpec], fences: FenceCompiler) -> None:
        """Compile a program for each tool."""
        counts = self.counts.setdefault(dialect.name, Counter())
        derived_of = Fences(dialect, marker_ids(fences))
        for tool in tools:
            asked = Conversation((Message(Role.USER, "x"),), {}, tools=(tool,), tool_mode=ToolMode.REQUIRED)
            try:
                derived = derived_of.derive(asked, PromptEnd(False, False, False))
                assert derived is not None
                compiled = fences.compile(read_program(write_program(derived)))
            except (InvalidRequestError, FenceError) as error:
                counts["failed"] += 1
                self.failed.append(f"{dialect.name} {tool.name}: {error}")
                continue
            relaxed = [*derived.relaxed, *compiled.relaxed]
            counts["relaxed" if relaxed else "whole"] += 1
            self.keywords.update(one.keyword for one in relaxed)


def measure(folder: Path, smollm2_dir: Path) -> Report:
    """Raises OSError."""
    report, tools = Report(), list(_tools(folder))
    for dialect in DIALECTS.values():
        report.run(dialect, tools, compiler("smollm2", smollm2_dir))
    return report


def _tools(folder: Path) -> Iterator[ToolSpec]:
    """Each distinct pair of a name and a schema."""
    seen: set[tuple[str, str]] = set()
    for path in sorted(folder.rglob("*.json")):
        for entry in _documents(path.read_text(encoding="utf-8")):
            for tool in _functions(entry):
                pair = str(tool["name"]), json.dumps(_mapped(tool["parameters"]))
                if pair not in seen:
                    seen.add(pair)
                    yield ToolSpec(pair[0], None, pair[1])


def _documents(text: str) -> Iterator[Any]:
    """One behind the other, on a line each or on several."""
    text, position = text.rstrip(), 0
    while position < len(text):
        while text[position].isspace():
            position += 1
        document, position = json.JSONDecoder().raw_decode(text, position)
        yield document


def _functions(entry: Any) -> Iterator[dict[str, Any]]:
    """An entry is a tool, or a question with tools; answers have neither."""
    if isinstance(entry, dict):
        fields = cast("dict[str, Any]", entry)
        if isinstance(fields.get("parameters"), dict) and "name" in fields:
            yield fields
        for tool in fields.get("function", ()) if isinstance(fields.get("function"), list) else ():
            yield from _functions(tool)


def _mapped(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_mapped(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {key: _mapped(value) for key, value in cast("dict[str, Any]", schema).items()}
    declared = fields.get("type")
    if isinstance(declared, str):
        fields["type"] = _JSON_TYPES.get(declared, declared)
        if fields["type"] not in _KNOWN:
            del fields["type"]
    return fields


if __name__ == "__main__":
    found = measure(Path(sys.argv[1]), resolve("smollm2-135m-instruct"))
    if "-v" in sys.argv[2:]:
        print(*found.failed, dict(found.keywords), sep="\n", file=sys.stderr)
    print(json.dumps({"bench": "tool_schemas", "failed": len(found.failed), "dialects": found.counts}))
