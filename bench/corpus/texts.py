"""Real texts, from what every checkout and every Python carries."""

from __future__ import annotations

import inspect
import json
import random
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

_REPOSITORY = Path(__file__).resolve().parent.parent.parent
_MIN_BYTES, _MAX_BYTES = 2_000, 60_000


@cache
def sources() -> Sequence[tuple[str, str]]:
    """Name and text of modules of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted([*root.glob("*.py"), *root.glob("[a-z]*/*.py")])
    chosen = [
        path
        for path in paths
        if _MIN_BYTES < path.stat().st_size < _MAX_BYTES
        and not {"site-packages", "test", "idlelib"} & set(path.relative_to(root).parts)
    ]
    return [(str(path.relative_to(root)), path.read_text("utf-8", errors="replace")) for path in chosen]


@cache
def manuals() -> Sequence[tuple[str, str]]:
    """Prose and markdown: Python's help topics, and this repository's documents and contracts."""
    paths = sorted([*_REPOSITORY.glob("*.md"), *_REPOSITORY.glob("docs/*.md"), *_REPOSITORY.glob("proto/**/*.proto")])
    own = [(path.name, path.read_text("utf-8")) for path in paths]
    return [*own, *((name, f"## {name}\n\n{text}\n") for name, text in sorted(topics.items()))]


def tool_result(source: random.Random) -> str:
    """What a tool of a coding agent returns: a numbered file, a search, a file as it is, JSON, or a document."""
    name, text = source.choice(sources())
    lines = text.split("\n")
    match source.choice(("numbered", "numbered", "search", "raw", "json", "manual")):
        case "numbered":
            return "".join(f"{number:6d}\t{line}\n" for number, line in enumerate(lines, 1))
        case "search":
            hits = [(i, line) for i, line in enumerate(lines, 1) if "def " in line or "return" in line or "#" in line]
            return "".join(f"{name}:{number}:{line}\n" for number, line in hits)
        case "raw":
            return text
        case "json":
            symbols = [line.strip() for line in lines if line.lstrip().startswith(("def ", "class "))]
            rows = [{"symbol": row, "path": name, "score": source.random(), "stale": False} for row in symbols]
            return json.dumps({"query": name, "truncated": None, "results": rows}, indent=source.choice((None, 2)))
        case _:
            return source.choice(manuals())[1]


def tools() -> str:
    """Definitions of thirty tools, one JSON object a line."""
    names = [f"{verb}_{noun}" for noun in ("file", "folder", "process", "page", "note") for verb in _VERBS]
    docs = inspect.cleandoc(open.__doc__ or "").split("\n\n")
    rows: list[str] = []
    for index, name in enumerate(names):
        properties = {
            "path": {"type": "string", "description": f"Where {name} works; {docs[index % len(docs)]}"},
            "pattern": {"type": "string", "description": "A regular expression; without it everything matches."},
            "timeout_ms": {"type": "integer", "minimum": 0, "description": "Gives up after so many milliseconds."},
        }
        schema = {"type": "object", "properties": properties, "required": ["path"]}
        function = {"name": name, "description": f"{name}: {docs[-1 - index % 3]}", "parameters": schema}
        rows.append(json.dumps({"type": "function", "function": function}, ensure_ascii=False))
    return "\n".join(rows)


_VERBS = ("read", "write", "edit", "search", "list", "watch")
