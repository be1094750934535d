"""Answers as a tokenizer may give them: one by one, and at random."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from hypothesis import strategies as st

Events = list[pb.GenerateResponse]


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool, and the item that its calls are when ``local_shell`` was offered."""

    item_type: str
    name: str
    namespace: str | None = None
    kind: conv.CallKind.ValueType = conv.CALL_KIND_FUNCTION


LS = ToolCalled("function_call", "ls")
SEARCH = ToolCalled("function_call", "search", namespace="mcp__docs__")
PATCH = ToolCalled("custom_tool_call", "apply_patch", kind=conv.CALL_KIND_CUSTOM)
SHELL = ToolCalled("local_shell_call", "local_shell")
FINISHES = tuple(
    getattr(pb, f"FINISH_REASON_{name}") for name in ("STOP", "STOP_TEXT", "LENGTH", "CALLS", "LOOP", "CANCELLED")
)


def text(*values: str) -> Events:
    return [pb.GenerateResponse(text_delta=pb.TextDelta(text=value)) for value in values]


def thought(*values: str, capsule: bytes | None = b"c") -> Events:
    """Without a capsule, nothing says that the thinking has ended."""
    deltas = [pb.GenerateResponse(reasoning_delta=pb.ReasoningDelta(text=value)) for value in values]
    if capsule is None:
        return deltas
    return [*deltas, pb.GenerateResponse(reasoning_finished=pb.ReasoningFinished(capsule=capsule))]


def call(tool: ToolCalled, index: int, *fragments: str, is_whole: bool = True) -> Events:
    started = pb.CallStarted(
        index=index, call_id=f"call_{index}", namespace=tool.namespace, name=tool.name, kind=tool.kind
    )
    events = [
        pb.GenerateResponse(call_started=started),
        *(pb.GenerateResponse(call_delta=pb.CallDelta(index=index, fragment=fragment)) for fragment in fragments),
    ]
    if is_whole:
        ended = pb.CallFinished(index=index, arguments="".join(fragments))
        events.append(pb.GenerateResponse(call_finished=ended))
    return events


_PIECES = st.text(max_size=4) | st.sampled_from(["", "", " ", "\n", "\u2028", "</tool_call>", "data: {}\n\n"])
_JSON = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3)
_ACTIONS = st.fixed_dictionaries(
    {"command": st.lists(st.text(max_size=4), max_size=3) | st.text(max_size=4)},
    optional={
        "env": st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
        "timeout_ms": st.integers() | st.floats(allow_nan=False) | st.none(),
        "working_directory": st.text(max_size=3) | st.none(),
    },
)
_ARGUMENTS = {
    LS: st.just("") | _JSON.map(json.dumps),
    SEARCH: _JSON.map(json.dumps),
    PATCH: st.text(max_size=12),
    SHELL: (_ACTIONS | _JSON).map(json.dumps),
}


@st.composite
def answers(draw: st.DrawFn) -> Events:
    """Anything that a tokenizer may send between Admitted and Finished."""
    events: Events = []
    if draw(st.booleans()):
        events += thought(*draw(st.lists(_PIECES, max_size=4)), capsule=draw(st.none() | st.binary(max_size=8)))
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from("ttc"), max_size=6)):
        if kind == "t":
            events += text(draw(_PIECES))
        else:
            events += draw(_calls(num_calls, is_whole=True))
            num_calls += 1
    if draw(st.booleans()):
        events += draw(_calls(num_calls, is_whole=False))
    return events


@st.composite
def _calls(draw: st.DrawFn, index: int, is_whole: bool) -> Events:
    tool = draw(st.sampled_from([LS, SEARCH, PATCH, SHELL]))
    arguments = draw(_ARGUMENTS[tool])
    if not is_whole:
        arguments = arguments[: draw(st.integers(0, len(arguments)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
    pieces = [arguments[start:end] for start, end in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    return call(tool, index, *pieces, is_whole=is_whole)
