"""Which readings begin at a place of the structure."""

from __future__ import annotations

from dataclasses import replace

from services.engine.fence.compiled import CompiledFence, CompiledRaw
from services.engine.fence.free_thread import FreeThread
from services.engine.fence.raw_thread import RawThread
from services.engine.fence.thinking_thread import ThinkingThread
from services.engine.fence.thread import Behind, StructureThread, Thread
from services.engine.fence.trie import Opening, TrieNode
from services.engine.fence.value_thread import ValueThread


def first(fence: CompiledFence) -> list[Thread]:
    """Those of an answer that begins."""
    text = FreeThread(fence, begun=None if fence.bare_lead_in is None else b"")
    begins = fence.structure.start() if fence.program.trigger is None else text
    if fence.program.has_reasoning_gate:
        return [ThinkingThread(fence, [begins])]
    if begins is text and fence.reasoning_start_id is not None:
        return [replace(text, thinking=ThinkingThread(fence, [text]))]
    return settle(fence, [begins])


def settle(fence: CompiledFence, behind: Behind) -> list[Thread]:
    """``behind`` with the readings of its places."""
    if not any(isinstance(one, TrieNode) for one in behind):
        return [one for one in behind if not isinstance(one, TrieNode)]
    settled: list[Thread] = []
    for one in behind:
        if isinstance(one, TrieNode):
            settled.extend(arrive(fence, one))
        else:
            settled.append(one)
    return settled


def arrive(fence: CompiledFence, node: TrieNode) -> list[Thread]:
    """The readings at one place."""
    found: list[Thread] = []
    if node.ids:
        found.append(StructureThread(fence, node))
    found.extend(_open(fence, opening) for opening in node.openings)
    for rest in node.resumed:
        resumed = fence.structure.at((rest,))
        found.extend([] if resumed is None else arrive(fence, resumed))
    if node.is_end and not fence.ends_with_eos:
        found.append(FreeThread(fence))
    return found


def _open(fence: CompiledFence, opening: Opening) -> Thread:
    opened = fence.open(opening)
    if isinstance(opened, CompiledRaw):
        return RawThread(fence, opened, opening)
    return ValueThread(fence, opened, opening)
