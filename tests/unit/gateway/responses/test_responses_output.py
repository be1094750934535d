"""Output items: what a stream says of them, and what they are in the end."""

from __future__ import annotations

import base64
import json
from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from services.gateway.responses.output import Output, OutputOptions
from services.gateway.responses.tool_names import ToolNames
from tests.unit.gateway.responses.answers import (
    LS,
    PATCH,
    SEARCH,
    SHELL,
    Events,
    ToolCalled,
    answers,
    call,
    text,
    thought,
)
from tests.unit.gateway.responses.item_laws import Event, items_of

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
PLAIN = OutputOptions()
OPTIONS = st.builds(OutputOptions, st.booleans(), st.booleans(), st.booleans())


def played(
    answer: Events, options: OutputOptions = PLAIN, *, status: str = "completed", has_local_shell: bool = True
) -> tuple[list[Event], list[Event]]:
    """Events as a client reads them, and the items of the output itself."""
    output = Output(ToolNames((), has_local_shell), options)
    # Written at once, as a transport does: what an event shows must not change later.
    events = [json.loads(orjson.dumps(found)) for event in answer for found in output.push(event)]
    events += [json.loads(orjson.dumps(found)) for found in output.close(status)]
    return events, json.loads(orjson.dumps(output.items))


def items(answer: Events, options: OutputOptions = PLAIN, *, status: str = "completed") -> list[Event]:
    """Without their ids."""
    found = played(answer, options, status=status)[1]
    return [{key: value for key, value in item.items() if key != "id"} for item in found]


def kinds(answer: Events, options: OutputOptions = PLAIN) -> list[str]:
    return [event["type"].removeprefix("response.") for event in played(answer, options)[0]]


def message(value: str, status: str = "completed") -> Event:
    part = {"type": "output_text", "text": value, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "status": status, "content": [part]}


def test_items_come_in_the_order_of_the_answer() -> None:
    answer = [
        *(*thought("hm", "m"), *text("So", ":")),
        *call(LS, 0, '{"a":', " 1}"),
        *text("and"),
        *call(SEARCH, 1, "{}"),
        *call(PATCH, 2, "***", "\n"),
        *call(SHELL, 3, '{"command": ["ls"], "timeout_ms": 5}'),
    ]
    assert items(answer) == [
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hmm"}],
            "status": "completed",
        },
        message("So:"),
        {
            "type": "function_call",
            "call_id": "call_0",
            "name": "ls",
            "arguments": '{"a": 1}',
            "status": "completed",
        },
        message("and"),
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "search",
            "namespace": "mcp__docs__",
            "arguments": "{}",
            "status": "completed",
        },
        {
            "type": "custom_tool_call",
            "call_id": "call_2",
            "name": "apply_patch",
            "input": "***\n",
            "status": "completed",
        },
        {
            "type": "local_shell_call",
            "call_id": "call_3",
            "action": {
                "type": "exec",
                "command": ["ls"],
                "env": {},
                "timeout_ms": 5,
                "user": None,
                "working_directory": None,
            },
            "status": "completed",
        },
    ]


def test_ids_say_what_they_are_of() -> None:
    answer = [*thought("hm"), *text("a"), *call(LS, 0, "{}"), *call(PATCH, 1, "a"), *call(SHELL, 2, "{}")]
    prefixes = [item["id"].split("_")[0] for item in played(answer)[1]]
    assert prefixes == ["rs", "msg", "fc", "ctc", "lsh"]


@pytest.mark.parametrize("answer", [[], text("", ""), thought("", capsule=b"c"), thought(capsule=b"")])
def test_nothing_is_no_item(answer: Events) -> None:
    assert played(answer) == ([], [])


def test_an_empty_piece_neither_opens_nor_divides_an_item() -> None:
    assert items([*text("a", "", "b"), *thought(""), *text("c")]) == [message("abc")]
    assert kinds(call(LS, 0, "", "{}", "")).count("function_call_arguments.delta") == 1


def test_a_thought_is_whole_before_the_text_begins() -> None:
    assert kinds([*thought("a", "b"), *text("c")])[:7] == [
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
    ]


def test_a_thought_whose_end_nobody_tells_ends_with_what_follows() -> None:
    assert [item["type"] for item in items([*thought("a", capsule=None), *text("c")])] == ["reasoning", "message"]
    assert [item["type"] for item in items([*thought("a", capsule=None), *call(LS, 0)])] == [
        "reasoning",
        "function_call",
    ]


def test_a_summary_says_the_same_as_the_thought() -> None:
    options = OutputOptions(reasoning_summary=True)
    (item,) = items(thought("a", "b"), options)
    assert item["summary"] == [{"type": "summary_text", "text": "ab"}]
    assert kinds(thought("a"), options) == [
        *("output_item.added", "content_part.added", "reasoning_summary_part.added"),
        *("reasoning_text.delta", "reasoning_summary_text.delta"),
        *("reasoning_text.done", "content_part.done"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ]


def test_a_capsule_is_shown_to_those_who_asked() -> None:
    asked = OutputOptions(encrypted_reasoning=True)
    capsule = b"\xff\xfe\xfd"
    events, (item,) = played(thought("a", capsule=capsule), asked)
    assert item["encrypted_content"] == base64.b64encode(capsule).decode() == "//79"
    assert "encrypted_content" not in events[0]["item"]
    for options, sealed in ((PLAIN, capsule), (asked, b""), (asked, None)):
        assert "encrypted_content" not in items(thought("a", capsule=sealed), options)[0]


def test_log_probabilities_are_shown_to_those_who_asked() -> None:
    sampled = pb.TokenLogprob(token=b"\xc3", logprob=-0.5)
    delta = pb.TextDelta(text="a", logprobs=[pb.TokenLogprobs(sampled=sampled, top=[sampled])])
    answer = [pb.GenerateResponse(text_delta=delta)] * 2
    one = {"token": "\\xc3", "bytes": [195], "logprob": -0.5}
    shown = {**one, "top_logprobs": [one]}
    events, (item,) = played(answer, OutputOptions(logprobs=True))
    assert item["content"][0]["logprobs"] == [shown, shown]
    assert [event["logprobs"] for event in events if "logprobs" in event] == [[shown], [shown], [shown, shown]]
    assert items(answer) == [message("aa")]


def test_local_shell_is_a_function_where_it_was_not_offered() -> None:
    for tool, offered in ((SHELL, False), (SEARCH, True)):
        assert played(call(tool, 0, "{}"), has_local_shell=offered)[1][0]["type"] == "function_call"


def test_what_is_cut_short_is_incomplete() -> None:
    assert items(text("a"), status="incomplete") == [message("a", "incomplete")]
    cut = items([*call(LS, 0, "{}"), *call(LS, 1, '{"a', is_whole=False)], status="incomplete")
    assert [(item["arguments"], item["status"]) for item in cut] == [("{}", "completed"), ('{"a', "incomplete")]


@pytest.mark.parametrize("tool", [LS, SEARCH, PATCH])
@pytest.mark.parametrize("following", [[], text("b"), call(LS, 1, "{}")])
def test_a_call_that_never_ended_is_incomplete_however_the_answer_ended(tool: ToolCalled, following: Events) -> None:
    cut = items([*call(tool, 0, '{"a', is_whole=False), *following], status="completed")
    assert [item["status"] for item in cut] == ["incomplete", *("completed" for _ in following[:1])]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
@pytest.mark.parametrize("following", [[], text("b"), call(SHELL, 1, "{}")])
def test_half_an_action_is_never_shown(following: Events, status: str) -> None:
    answer = [*call(SHELL, 0, '{"command": ["rm", "-r', is_whole=False), *following]
    assert items(answer, status=status) == items(following, status=status)


@settings(max_examples=300)
@given(answers(), OPTIONS, st.sampled_from(["completed", "incomplete"]))
def test_every_stream_keeps_the_laws_of_items(answer: Events, options: OutputOptions, status: str) -> None:
    events, finished = played(answer, options, status=status)
    for number, event in enumerate(events):
        EVENT.validate_json(orjson.dumps({**event, "sequence_number": number}), strict=True)
    for item in finished:
        ITEM.validate_json(orjson.dumps(item), strict=True)
    assert items_of(events) == finished
    assert len({item["id"] for item in finished}) == len(finished)


@settings(max_examples=200)
@given(answers())
def test_nothing_is_lost_and_nothing_added(answer: Events) -> None:
    finished = items(answer)
    texts = [part["text"] for item in finished for part in item.get("content", [])]
    said = [event.text_delta.text or event.reasoning_delta.text for event in answer]
    assert "".join(texts) == "".join(said)
    calls: list[tuple[str, str]] = []
    for event in answer:
        if event.HasField("call_started"):
            calls.append((event.call_started.name, ""))
        elif event.HasField("call_delta"):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.call_delta.fragment)
    is_cut = sum(event.HasField("call_finished") for event in answer) < len(calls)
    if is_cut and calls[-1][0] == SHELL.name:
        del calls[-1]
    shown = [item for item in finished if "call_id" in item]
    assert [item.get("name", SHELL.name) for item in shown] == [name for name, _ in calls]
    for item, (_, arguments) in zip(shown, calls, strict=True):
        assert item.get("arguments", item.get("input", arguments)) == arguments
