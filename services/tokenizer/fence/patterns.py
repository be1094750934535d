"""JSON Schema's ``pattern`` is searched for anywhere in a string; a program's must match the whole text."""

from __future__ import annotations

_ANY = r"[\s\S]*"


def whole_pattern(pattern: str) -> str | None:
    """A regular expression for the strings in which ``pattern`` is found; None where its anchors are too entangled.

    Anchors are understood at the ends of alternatives that no group encloses.
    """
    alternatives = _alternatives(pattern)
    if alternatives is None:
        return None
    whole = [_whole(alternative) for alternative in alternatives]
    found = [one for one in whole if one is not None]
    if len(found) < len(whole):
        return None
    return found[0] if len(found) == 1 else "|".join(f"(?:{one})" for one in found)


def _whole(pattern: str) -> str | None:
    starts, ends = pattern.startswith("^"), _is_anchored_at_end(pattern)
    body = pattern[starts : len(pattern) - ends]
    if _has_anchor(body):
        return None
    if starts and ends:
        return body
    return f"{'' if starts else _ANY}(?:{body}){'' if ends else _ANY}"


def _is_anchored_at_end(pattern: str) -> bool:
    return pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1


def _has_anchor(pattern: str) -> bool:
    return any(char in "^$" for char, _ in _outside_classes(pattern))


def _alternatives(pattern: str) -> list[str] | None:
    """Cut at the ``|`` that no group encloses; None where groups are not closed."""
    cuts: list[int] = [-1]
    depth = 0
    for char, position in _outside_classes(pattern):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            return None
        if char == "|" and depth == 0:
            cuts.append(position)
    if depth:
        return None
    return [pattern[start + 1 : end] for start, end in zip(cuts, [*cuts[1:], len(pattern)], strict=True)]


def _outside_classes(pattern: str) -> list[tuple[str, int]]:
    """Characters with their places that are neither escaped nor in a class."""
    found: list[tuple[str, int]] = []
    position, in_class = 0, False
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 2
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        else:
            found.append((char, position))
        position += 1
    return found
