"""The tags of DeepSeek's markup: how each version writes them, and every spelling in which they are read.

Models misspell them: ``\\<`` for ``<``, another version's names or spaces, other case, ``toolcalls`` or ``tool``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

MARKER = "｜DSML｜"
BLOCK_NAMES = ("function_calls", "tool_calls", "calls", "toolcalls", "tool")
"""The first three are canonical, each in its version."""

_MAX_NAME_CHARS = 256
_MAX_OPENING_CHARS = _MAX_NAME_CHARS + 64
"""A tag's attributes are no longer than this, so that unreadable ones are not waited for."""

_HEAD = re.compile(rf"(\\?)<\\?(/?)({MARKER} ?([A-Za-z_]+))", re.IGNORECASE)
_ATTRIBUTES = re.compile(
    rf'[ ]{{1,4}}name="((?:(?!{MARKER}).){{0,{_MAX_NAME_CHARS}}}?)"(?:[ ]{{1,4}}string="(true|false)")?[ ]{{0,4}}>',
    re.IGNORECASE | re.DOTALL,
)
_END = re.compile(r"[ ]{0,4}>")


def _beginnings(steps: list[str], end: str) -> re.Pattern[str]:
    """Matches a text that ends before ``steps``, in this order, are through, or that ``end`` matches from there."""
    pattern = end
    for step in reversed(steps):
        pattern = rf"(?:\Z|{step}{pattern})"
    return re.compile(pattern, re.IGNORECASE)


_HEAD_BEGUN = _beginnings([r"\\?", "<", r"\\?", "/?", *MARKER, " ?"], r"\Z")
_ATTRIBUTES_BEGUN = _beginnings([" {1,4}", *'name="'], "")


class TagKind(Enum):
    """What a tag is about."""

    BLOCK = auto()
    INVOKE = auto()
    PARAMETER = auto()


_KINDS = {
    "invoke": TagKind.INVOKE,
    "parameter": TagKind.PARAMETER,
    **dict.fromkeys(BLOCK_NAMES, TagKind.BLOCK),
}


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag found in text."""

    kind: TagKind
    is_closing: bool
    end: int
    """Where the text goes on."""
    spelling: str
    """What stands between the slash, if any, and the attributes."""
    is_escaped: bool
    """Written with a backslash before it."""
    name: str = ""
    """Of an opening tag that is no block's."""
    is_string: bool | None = None
    """A parameter's ``string=``; None where it says nothing."""


def read_tag(text: str, start: int, *, is_final: bool = False) -> Tag | None:
    """The tag at ``start``; None where there is none. Raises ``UnfinishedTag`` where more text decides."""
    head = _HEAD.match(text, start)
    if head is None:
        if not is_final and _HEAD_BEGUN.match(text, start):
            raise UnfinishedTag
        return None
    escape, slash, spelling, spelt_name = head.groups()
    is_whole = head.end() < len(text) or is_final
    if not is_whole and any(name.startswith(spelt_name.lower()) for name in _KINDS):
        raise UnfinishedTag
    kind = _KINDS.get(spelt_name.lower())
    if kind is None:
        return None
    if slash or kind is TagKind.BLOCK:
        end = _END.match(text, head.end())
        if end is not None:
            return Tag(kind, bool(slash), end.end(), spelling, bool(escape))
        rest = text[head.end() : head.end() + 5]
        if not is_final and len(rest) < 5 and not rest.strip(" "):
            raise UnfinishedTag
        return None
    attributes = _ATTRIBUTES.match(text, head.end(), head.end() + _MAX_OPENING_CHARS)
    if attributes is not None:
        name, is_string = attributes.groups()
        marked = None if is_string is None else is_string.lower() == "true"
        return Tag(kind, False, attributes.end(), spelling, bool(escape), name, marked)
    is_short = len(text) - head.end() < _MAX_OPENING_CHARS
    if not is_final and is_short and _ATTRIBUTES_BEGUN.match(text, head.end()):
        raise UnfinishedTag
    return None


class UnfinishedTag(Exception):
    """The text ends inside what may become a tag."""


@dataclass(frozen=True, slots=True)
class ValuePart:
    """``text[:end]`` belongs to the value; ``after`` is where the text behind its closing tag starts, if that came."""

    end: int
    after: int | None


def find_value_end(text: str, closing: str, *, is_escaped: bool = False, is_final: bool = False) -> ValuePart:
    """Where the value at the beginning of ``text`` ends.

    ``closing``, the tag that the opening one wants, always ends it. Another spelling of that is part of the value,
    unless a tag follows, as behind a value one must. ``is_escaped``: the opening tag had a backslash before it, and so
    has the closing one.
    """
    position = text.find("<")
    while position >= 0:
        start = position - (is_escaped and text[position - 1 : position] == "\\")
        if text.startswith(closing, position):
            return ValuePart(start, position + len(closing))
        try:
            tag = read_tag(text, position, is_final=is_final)
            if tag is not None and tag.kind is TagKind.PARAMETER and tag.is_closing:
                follower = len(text) - len(text[tag.end :].lstrip())
                if read_tag(text, follower, is_final=is_final) is not None:
                    return ValuePart(start, tag.end)
        except UnfinishedTag:
            return ValuePart(start, None)
        position = text.find("<", position + 1)
    return ValuePart(len(text) - (is_escaped and not is_final and text.endswith("\\")), None)
