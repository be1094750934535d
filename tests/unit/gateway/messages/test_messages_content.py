"""Content blocks: laws that every stream keeps, whatever the model does."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from services.gateway.messages.content import NOT_SIGNED, ContentBlocks, ContentStream, Event

EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
START: Event = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 0},
    },
}


def text(value: str) -> pb.GenerateResponse:
    return pb.GenerateResponse(text_delta=pb.TextDelta(text=value))


def thought(*values: str, capsule: bytes | None = b"c") -> list[pb.GenerateResponse]:
    deltas = [pb.GenerateResponse(reasoning_delta=pb.ReasoningDelta(text=value)) for value in values]
    if capsule is None:
        return deltas
    return [*deltas, pb.GenerateResponse(reasoning_finished=pb.ReasoningFinished(capsule=capsule))]


def call(index: int, *fragments: str, is_whole: bool = True) -> list[pb.GenerateResponse]:
    events = [
        pb.GenerateResponse(call_started=pb.CallStarted(index=index, call_id=f"call_{index}", name="ls")),
        *(pb.GenerateResponse(call_delta=pb.CallDelta(index=index, fragment=fragment)) for fragment in fragments),
    ]
    if is_whole:
        whole = pb.CallFinished(index=index, arguments="".join(fragments))
        events.append(pb.GenerateResponse(call_finished=whole))
    return events


def events_of(answer: list[pb.GenerateResponse]) -> list[Event]:
    stream = ContentStream()
    return [*(found for event in answer for found in stream.read(event)), *stream.end()]


def blocks_of(answer: list[pb.GenerateResponse]) -> list[dict[str, Any]]:
    blocks = ContentBlocks()
    blocks.add(events_of(answer))
    return json.loads(orjson.dumps(blocks.finished()))


def accumulated(events: list[Event]) -> list[dict[str, Any]]:
    """What the official client makes of it."""
    buffers: dict[int, bytes] = {}
    snapshot: Any = None
    for event in [START, *events]:
        valid = EVENT.validate_json(orjson.dumps(event), strict=True)
        snapshot = accumulate_event(event=valid, current_snapshot=snapshot, json_bufs=buffers)
    return [block.model_dump(mode="json", exclude_unset=True) for block in snapshot.content]


def test_blocks_come_in_the_order_of_the_answer() -> None:
    answer = [*thought("hm", "m"), text("So"), text(":"), *call(0, '{"a":', "1}"), text("and"), *call(1, "{}")]
    assert blocks_of(answer) == [
        {"type": "thinking", "thinking": "hmm", "signature": base64.b64encode(b"c").decode()},
        {"type": "text", "text": "So:"},
        {"type": "tool_use", "id": "call_0", "name": "ls", "input": {"a": 1}},
        {"type": "text", "text": "and"},
        {"type": "tool_use", "id": "call_1", "name": "ls", "input": {}},
    ]


def test_a_thought_is_signed_before_its_block_ends() -> None:
    kinds = [(event["type"], event.get("delta", {}).get("type")) for event in events_of(thought("a", "b"))]
    assert kinds == [
        ("content_block_start", None),
        ("content_block_delta", "thinking_delta"),
        ("content_block_delta", "thinking_delta"),
        ("content_block_delta", "signature_delta"),
        ("content_block_stop", None),
    ]
    assert events_of(thought("a"))[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}


@pytest.mark.parametrize("capsule", [b"", None])
def test_a_thought_without_a_capsule_has_a_signature_that_means_none(capsule: bytes | None) -> None:
    assert blocks_of([*thought("a", capsule=capsule), text("b")])[0]["signature"] == NOT_SIGNED
    with pytest.raises(ValueError, match="base64"):
        base64.b64decode(NOT_SIGNED, validate=True)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [text("")],
        [text("\n"), text(" \n")],
        thought("", "\n"),
        [*thought("\n\n"), text("")],
    ],
)
def test_nothing_opens_no_block(answer: list[pb.GenerateResponse]) -> None:
    assert events_of(answer) == []


def test_leading_whitespace_waits_for_text() -> None:
    assert blocks_of([text("\n"), text(""), text("\na"), text("\n")]) == [{"type": "text", "text": "\n\na\n"}]
    assert [block["type"] for block in blocks_of([text("\n\n"), *call(0, "{}")])] == ["tool_use"]


def test_a_call_without_arguments_has_valid_json() -> None:
    deltas = [event["delta"] for event in events_of(call(0)) if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "input_json_delta", "partial_json": "{}"}]


def test_whole_arguments_keep_their_spelling() -> None:
    arguments = '{"b": 1.0, "a": 1e5, "n": 123456789012345678901234567890, "s": "\\u00e9", "b": 2}'
    blocks = ContentBlocks()
    blocks.add(events_of(call(0, arguments)))
    assert arguments.encode() in orjson.dumps(blocks.finished())


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ('{"path": "/", "deep": {"a": [1, 2', {"path": "/", "deep": {"a": [1, 2]}}),
        ('{"path": "/tm', {}),
        ('{"n": 123456789012345678901234567890, "x', {"n": 123456789012345678901234567890}),
        ('{"n": NaN, "x', {}),
        ('{"n": 1e999, "x', {}),
        ("{oops", {}),
        ("[1, 2]", {}),
        ("[1, ", {}),
        ("[" * 3000, {}),
    ],
)
def test_a_call_that_was_cut_short_has_what_is_complete(arguments: str, complete: dict[str, Any]) -> None:
    blocks = ContentBlocks()
    blocks.add(events_of(call(0, arguments, is_whole=False)))
    assert json.loads(orjson.dumps(blocks.finished()))[0]["input"] == complete


_PIECES = st.text(max_size=4) | st.sampled_from(["", " ", "\n", "\u2028", "</tool_call>", "data: {}\n\n"])
_JSON = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.none(), max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> list[pb.GenerateResponse]:
    """Anything that a tokenizer may send between Admitted and Finished."""
    events: list[pb.GenerateResponse] = []
    if draw(st.booleans()):
        capsule = draw(st.none() | st.binary(max_size=8))
        events += thought(*draw(st.lists(_PIECES, max_size=4)), capsule=capsule)
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from("ttc"), max_size=6)):
        if kind == "t":
            events.append(text(draw(_PIECES)))
            continue
        # JSON's own spaces inside a text are no matter here; an answer's arguments always begin with their object.
        arguments = draw(st.just("") | _JSON.map(json.dumps))
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
        pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        events += call(num_calls, *(piece for piece in pieces if piece or draw(st.booleans())))
        num_calls += 1
    if draw(st.booleans()):
        arguments = draw(_JSON.map(json.dumps))
        events += call(num_calls, arguments[: draw(st.integers(0, len(arguments)))], is_whole=False)
    return events


@settings(max_examples=300)
@given(answers())
def test_every_stream_is_nested_numbered_and_never_empty(answer: list[pb.GenerateResponse]) -> None:
    events = events_of(answer)
    position = 0
    while position < len(events):
        start = events[position]
        assert start["type"] == "content_block_start"
        deltas: list[Event] = []
        while (event := events[position := position + 1])["type"] == "content_block_delta":
            deltas.append(event)
        assert event["type"] == "content_block_stop"
        position += 1
        index, kind = start["index"], start["content_block"]["type"]
        assert {one["index"] for one in [*deltas, event]} == {index}
        assert deltas
        pieces = [value for one in deltas for key, value in one["delta"].items() if key != "type"]
        assert all(pieces)
        kinds = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
        names = [one["delta"]["type"] for one in deltas]
        signature = ["signature_delta"] if kind == "thinking" else []
        assert names == [kinds[kind]] * (len(names) - len(signature)) + signature
        assert len(names) > len(signature)
        if kind != "tool_use":
            assert not "".join(pieces).isspace()
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["index"] for event in starts] == list(range(len(starts)))


@settings(max_examples=300)
@given(answers())
def test_a_stream_adds_up_to_the_whole(answer: list[pb.GenerateResponse]) -> None:
    assert accumulated(events_of(answer)) == blocks_of(answer)


@settings(max_examples=200)
@given(answers())
def test_no_text_is_lost_but_idle_whitespace(answer: list[pb.GenerateResponse]) -> None:
    sent = "".join(event.text_delta.text for event in answer)
    shown = "".join(block["text"] for block in blocks_of(answer) if block["type"] == "text")
    assert "".join(shown.split()) == "".join(sent.split())
