"""Programs in a form for people: one node a line, what is inside it further in."""

from __future__ import annotations

import json
from collections.abc import Iterator

from services.tokenizer.fence.program import (
    Choose,
    Grammar,
    Keys,
    Literal,
    Node,
    ProgramDraft,
    Raw,
    Repeat,
    Value,
)
from services.tokenizer.fence.program import Sequence as InOrder


def spelt(draft: ProgramDraft) -> str:
    lines: list[str] = []
    if draft.has_reasoning_gate:
        lines.append("behind thinking")
    if draft.trigger is not None:
        bare = " (bare at start)" if draft.trigger.is_bare_at_start else ""
        lines.append(f"behind {_text(draft.trigger.lead_in)}{bare} {_text(draft.trigger.tag)}")
    lines.extend(_lines(draft.entry))
    for one in draft.text_triggers:
        lines.append(f"or {_text(one.text)}")
        lines.extend(_lines(one.entry))
    lines.append(f"markers {' '.join(draft.markers)}")
    lines.extend(f"relaxed {one.place} {one.keyword}" for one in draft.relaxed)
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _lines(node: Node) -> Iterator[str]:
    match node:
        case Literal():
            yield _text(node.text)
        case InOrder():
            for one in node.nodes:
                yield from _lines(one)
        case Choose():
            yield "choose"
            for branch in node.branches:
                yield f"  {_text(branch.key)}"
                yield from _inside(branch.next, 4)
        case Keys():
            yield f"keys between {_text(node.between)} close {_text(node.close)}"
            for item in node.items:
                yield f"  {_text(item.key)}{' required' if item.is_required else ''}"
                yield from _inside(item.value, 4)
        case Value():
            yield f"json {node.json_schema}{_after(node.after)}"
        case Raw():
            limits = f" {node.min_chars}-{node.max_chars}" if node.min_chars or node.max_chars is not None else ""
            pattern = f" /{node.pattern}/" if node.pattern is not None else ""
            yield f"text{limits}{pattern}{_after(node.after)}"
        case Repeat():
            most = "" if node.max is None else str(node.max)
            yield f"repeat {node.min}-{most} separator {_text(node.separator)}"
            yield from _inside(node.node, 2)
        case Grammar():
            yield f"{node.syntax.name.lower()} {_text(node.text)}"


def _inside(node: Node, width: int) -> Iterator[str]:
    return (" " * width + line for line in _lines(node))


def _after(after: str) -> str:
    return f" then {_text(after)}" if after else ""
