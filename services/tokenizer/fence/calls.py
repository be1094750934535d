"""Programs of calls: what all dialects have in common, around what each of them writes.

[free text] lead_in TAG first_call NAME … end          one call
… call next_call NAME … end_call                       several
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from services.tokenizer.dialects.reasoning import ThinkTags
from services.tokenizer.fence.program import (
    Branch,
    Choose,
    Literal,
    Node,
    ProgramDraft,
    Raw,
    Relaxed,
    Repeat,
    TextTrigger,
    Trigger,
    is_prefix_free,
    literal,
    sequence,
)

THINK_MARKERS = ("<think>", "</think>")


class Thinking(Enum):
    """Where an answer begins."""

    OVER = auto()
    """Behind thinking, or the model does none."""
    GATED = auto()
    """Inside thinking that one token ends."""
    SPELT = auto()
    """Inside thinking whose end is text."""
    POSSIBLE = auto()
    """The model may open thinking first."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request demands of an answer with tools."""

    is_required: bool
    """At least one call, and no text."""
    max_calls: int | None
    """At least 1; None: no limit."""
    thinking: Thinking
    follows_text: bool
    """The answer goes on with text that is there already."""


@dataclass(frozen=True, slots=True)
class Untagged:
    """How a model goes on that leaves tags out, the first of all."""

    start: str
    """To the first call's name, wherever it stands in free text."""
    name_end: str
    """Behind a name; free text ends with it, where it is that of a tool."""
    next_calls: tuple[str, ...]
    """From a call's end to the next one's name; none is a prefix of another."""
    end: str
    """What may stand behind the last call."""


@dataclass(frozen=True, slots=True)
class Markup:
    """How a dialect writes what stands around calls."""

    lead_in: str
    """Before the first tag, behind text; without text, too, unless ``is_bare_at_start``."""
    is_bare_at_start: bool
    behind_thinking: str
    """Between the end of thinking and what ``lead_in`` says."""
    tag: str
    """Opens the first block; free text ends there."""
    first_call: str
    """From the tag to the first call's name."""
    next_call: str
    """From a call's end to the next one's name."""
    end: str
    """Behind the last call."""
    think_tags: ThinkTags
    markers: tuple[str, ...]
    untagged: Untagged | None = None
    """What the model may write instead, which the dialect itself never does."""


def write_program(
    markup: Markup, branches: Sequence[Branch], rules: CallRules, relaxed: Iterable[Relaxed]
) -> ProgramDraft | None:
    """``branches``: from a call's name to its end, one or more for each tool; None where there are none."""
    if not branches:
        return None
    call = Choose(tuple(branches))
    calls: list[Node] = [literal(markup.first_call), call]
    most = None if rules.max_calls is None else rules.max_calls - 1
    if most != 0:
        calls.append(Repeat(sequence(literal(markup.next_call), call), 0, most))
    calls.append(literal(markup.end))
    entry = sequence(*calls)
    is_bare = markup.is_bare_at_start and not rules.follows_text
    if not rules.is_required:
        trigger = Trigger(markup.lead_in, markup.tag, is_bare)
        is_gated = rules.thinking is Thinking.GATED
        others = () if markup.untagged is None else _untagged(markup.untagged, call, most)
        return ProgramDraft(entry, trigger, is_gated, markup.markers, tuple(relaxed), others)
    entry = sequence(literal(("" if is_bare else markup.lead_in) + markup.tag), entry)
    return behind_thinking(rules.thinking, markup.think_tags, markup.behind_thinking, entry, markup.markers, relaxed)


def _untagged(markup: Untagged, call: Choose, most: int | None) -> tuple[TextTrigger, ...]:
    """One for each branch: what starts like a call of no tool stays text. ``most``: calls behind the first."""
    more = Choose(tuple(Branch(text, call) for text in markup.next_calls))
    behind = (*(() if most == 0 else (Repeat(more, 0, most),)), Repeat(literal(markup.end), 0, 1))
    triggers: list[TextTrigger] = []
    for branch in call.branches:
        name, end, rest = branch.key.rpartition(markup.name_end)
        triggers.append(TextTrigger(markup.start + name + end, sequence(literal(rest), branch.next, *behind)))
    return tuple(triggers)


def behind_thinking(
    thinking: Thinking,
    tags: ThinkTags,
    space: str,
    entry: Node,
    markers: tuple[str, ...],
    relaxed: Iterable[Relaxed],
) -> ProgramDraft:
    """A program that must come first in the answer, or first after its thinking and ``space``."""
    opening, closing = THINK_MARKERS
    ending = Raw(closing + space, "thinking")
    match thinking:
        case Thinking.OVER:
            pass
        case Thinking.GATED:
            return ProgramDraft(sequence(literal(space), entry), None, True, markers, tuple(relaxed))
        case Thinking.SPELT:
            entry = sequence(ending, entry)
        case Thinking.POSSIBLE:
            lead_in = tags.opening[: tags.opening.index(opening)]
            entry = sequence(Repeat(sequence(Literal(lead_in + opening), ending), 0, 1), entry)
            markers = (*markers, *THINK_MARKERS)
    return ProgramDraft(entry, None, False, markers, tuple(relaxed))


def distinct(branches: Iterable[Branch]) -> list[Branch]:
    """Those that can be told apart from all before them."""
    kept: list[Branch] = []
    for branch in branches:
        if not any(one.key.startswith(branch.key) or branch.key.startswith(one.key) for one in kept):
            kept.append(branch)
    assert is_prefix_free([branch.key for branch in kept]) or len(kept) < 2
    return kept
