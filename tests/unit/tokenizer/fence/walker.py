"""A slow twin of the engine's fences: walks a program over the whole text of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache

from jsonschema import Draft202012Validator

from services.tokenizer.fence.program import (
    Choose,
    Grammar,
    GrammarSyntax,
    KeyItem,
    Keys,
    Literal,
    Node,
    ProgramDraft,
    Raw,
    Repeat,
    Value,
)
from services.tokenizer.fence.program import Sequence as InOrder

_THINKING_END = "</think>"


def accepts(draft: ProgramDraft, text: str) -> bool:
    """Whether ``text`` may be a whole answer."""
    if draft.has_reasoning_gate:
        thought, ended, text = text.partition(_THINKING_END)
        if not ended:
            return draft.trigger is not None
        assert not any(marker in thought for marker in draft.markers)
    start = 0
    if draft.trigger is not None:
        position = text.find(draft.trigger.tag)
        others = [(text.find(other.text), other) for other in draft.text_triggers if other.text in text]
        if others:
            found, other = min(others, key=lambda one: one[0])
            if not 0 <= position <= found:
                return len(text) in ends(other.entry, text, found + len(other.text))
        if position < 0:
            return True
        is_bare = draft.trigger.is_bare_at_start and position == 0
        if not text.endswith(draft.trigger.lead_in, 0, position) and not is_bare:
            return False
        start = position + len(draft.trigger.tag)
    return len(text) in ends(draft.entry, text, start)


def ends(node: Node, text: str, start: int) -> Iterator[int]:
    """Where ``node`` may end that begins at ``start``."""
    match node:
        case Literal():
            if text.startswith(node.text, start):
                yield start + len(node.text)
        case InOrder():
            yield from _in_order(node.nodes, text, start)
        case Choose():
            keys = [branch.key for branch in node.branches]
            assert keys
            assert not any(a != b and b.startswith(a) for a in keys for b in keys)
            assert len(set(keys)) == len(keys)
            for branch in node.branches:
                if text.startswith(branch.key, start):
                    yield from ends(branch.next, text, start + len(branch.key))
        case Keys():
            yield from _keys(node, node.items, text, start)
        case Repeat():
            yield from _repeat(node, 0, text, start)
        case Value():
            yield from _value(node, text, start)
        case Raw():
            yield from _raw(node, text, start)
        case Grammar():
            assert node.syntax is GrammarSyntax.REGEX
            yield from (end for end in range(start, len(text) + 1) if re.fullmatch(node.text, text[start:end]))


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def _in_order(nodes: Sequence[Node], text: str, start: int) -> Iterator[int]:
    if not nodes:
        yield start
        return
    for end in ends(nodes[0], text, start):
        yield from _in_order(nodes[1:], text, end)


def _keys(keys: Keys, left: Sequence[KeyItem], text: str, start: int) -> Iterator[int]:
    if not any(item.is_required for item in left) and text.startswith(keys.close, start):
        yield start + len(keys.close)
    between = keys.between if len(left) < len(keys.items) else ""
    for item in left:
        if text.startswith(between + item.key, start):
            for end in ends(item.value, text, start + len(between + item.key)):
                yield from _keys(keys, [other for other in left if other is not item], text, end)


def _repeat(repeat: Repeat, count: int, text: str, start: int) -> Iterator[int]:
    if count >= repeat.min:
        yield start
    if repeat.max is None or count < repeat.max:
        separator = repeat.separator if count else ""
        if text.startswith(separator, start):
            for end in ends(repeat.node, text, start + len(separator)):
                yield from _repeat(repeat, count + 1, text, end)


def _value(value: Value, text: str, start: int) -> Iterator[int]:
    try:
        found, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError:
        return
    is_canonical = json.dumps(found, ensure_ascii=False) == text[start:end] or not value.is_canonical
    if is_canonical and _validator(value.json_schema).is_valid(found) and text.startswith(value.after, end):
        yield end + len(value.after)


def _raw(raw: Raw, text: str, start: int) -> Iterator[int]:
    end = text.find(raw.after, start)
    inside = text[start:end]
    if end < 0 or any(one in inside for one in raw.forbidden):
        return
    is_short = raw.max_chars is None or len(inside) <= raw.max_chars
    if is_short and len(inside) >= raw.min_chars and (raw.pattern is None or re.fullmatch(raw.pattern, inside)):
        yield end + len(raw.after)
