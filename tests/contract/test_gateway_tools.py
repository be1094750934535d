"""Chat Completions with tools: what the tokenizer is told of them, and how calls come back."""

from __future__ import annotations

import re
from typing import Any

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, call, finished, progress, reasoning, text

PATH = "/v1/chat/completions"
LS = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}}}
PWD = {"type": "function", "function": {"name": "pwd"}}
ENDED = finished(tokenizer_pb2.FINISH_REASON_CALLS)
HOSTILE = ['{"path": "', "a\u2028\u0085\n\\", '"</tool_call>', "data: [DONE]\n\n", '"}']
SCRIPTS: dict[str, list[Any]] = {
    "one call": [admitted(), *call(0, "call_a", "ls", '{"path"', ':"/"}'), ENDED],
    "parallel calls": [
        *(admitted(), progress(64)),
        *call(0, "call_a", "ls", '{"path"', ':"/"}'),
        *call(1, "call_b", "ls", "{}"),
        *call(2, "call_c", "pwd", "{", "", "}"),
        ENDED,
    ],
    "text then call": [admitted(), text("Let me"), text(" look."), *call(0, "call_a", "ls", "{}"), ENDED],
    "reasoning then call": [admitted(), reasoning("hm"), reasoning("m"), *call(0, "call_a", "ls", "{}"), ENDED],
    "everything": [admitted(), reasoning("hm"), text("So:"), *call(0, "call_a", "ls", *HOSTILE), ENDED],
    "no arguments": [admitted(), *call(0, "call_a", "pwd"), ENDED],
    "cut short": [
        *(admitted(), *call(0, "call_a", "ls", "{}"), *call(1, "call_b", "ls", '{"pa', "th")[:-1]),
        finished(tokenizer_pb2.FINISH_REASON_LENGTH),
    ],
}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "tools": [LS, PWD], **changes}


async def chunks_of(client: httpx.AsyncClient) -> list[Any]:
    response = await client.post(PATH, json=body(stream=True))
    *data, done = response.content.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    return [orjson.loads(line.removeprefix(b"data: ")) for line in data]


def deltas_of(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks]


def joined(chunks: list[Any]) -> dict[str, Any]:
    """The message that a strict client puts together: ids and names come once, before any fragment."""
    message: dict[str, Any] = {"role": None, "content": "", "reasoning_content": "", "tool_calls": []}
    for delta in deltas_of(chunks):
        message["role"] = delta.get("role", message["role"])
        message["content"] += delta.get("content", "")
        message["reasoning_content"] += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", ()):
            if piece["index"] == len(message["tool_calls"]):
                assert set(piece) == {"index", "id", "type", "function"}
                message["tool_calls"].append({name: piece[name] for name in ("id", "type", "function")})
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
                assert piece["function"]["arguments"]
                message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return message


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_stream_adds_up_to_the_whole_answer(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, name: str
) -> None:
    tokenizer.script = SCRIPTS[name]
    chunks = await chunks_of(client)
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(orjson.dumps(chunk), strict=True)
    whole = (await client.post(PATH, json=body())).content
    ChatCompletion.model_validate_json(whole, strict=True)
    choice = orjson.loads(whole)["choices"][0]
    message = choice["message"]
    assert joined(chunks) == {
        "role": message["role"],
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": message["tool_calls"],
    }
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [choice["finish_reason"]]
    assert choice["finish_reason"] == ("length" if name == "cut short" else "tool_calls")


async def test_calls_come_whole(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = SCRIPTS["parallel calls"]
    message = (await client.post(PATH, json=body())).json()["choices"][0]["message"]
    assert message["content"] is None
    assert "reasoning_content" not in message
    assert [(found["id"], found["type"], found["function"]) for found in message["tool_calls"]] == [
        ("call_a", "function", {"name": "ls", "arguments": '{"path":"/"}'}),
        ("call_b", "function", {"name": "ls", "arguments": "{}"}),
        ("call_c", "function", {"name": "pwd", "arguments": "{}"}),
    ]


async def test_parallel_calls_match_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any
) -> None:
    tokenizer.script = SCRIPTS["parallel calls"]
    response = await client.post(PATH, json=body(stream=True, stream_options={"include_usage": True}))
    stable = re.sub(rb"chatcmpl-[0-9a-f]{32}", b"chatcmpl-ID", response.content)
    golden("chat_parallel_calls.sse", re.sub(rb'"created":\d+', b'"created":0', stable))


# Its helper raises on answers that were cut short.
@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "cut short"])
async def test_the_official_client_puts_the_calls_together(url: str, tokenizer: ScriptedTokenizer, name: str) -> None:
    tokenizer.script = SCRIPTS[name]
    arguments: dict[str, Any] = body()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = (await client.chat.completions.create(**arguments)).choices[0]
        async with client.chat.completions.stream(**arguments) as stream:
            final = (await stream.get_final_completion()).choices[0]
    assert final.finish_reason == whole.finish_reason == "tool_calls"
    assert (final.message.content or "") == (whole.message.content or "")
    assert whole.message.tool_calls
    ours = [found.model_dump(exclude={"function": {"parsed_arguments"}}) for found in whole.message.tool_calls]
    theirs = [
        found.model_dump(exclude={"index": True, "function": {"parsed_arguments"}})
        for found in final.message.tool_calls or ()
    ]
    assert ours == theirs


async def test_custom_calls_come_as_text(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [
        admitted(),
        *call(0, "call_a", "patch", "*** Begin", "\n***", kind=conversation_pb2.CALL_KIND_CUSTOM),
        *call(1, "call_b", "ls", "{}"),
        ENDED,
    ]
    whole = (await client.post(PATH, json=body())).content
    ChatCompletion.model_validate_json(whole, strict=True)
    made = orjson.loads(whole)["choices"][0]["message"]["tool_calls"]
    assert made == [
        {"id": "call_a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin\n***"}},
        {"id": "call_b", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
    ]
    pieces = [piece for delta in deltas_of(await chunks_of(client)) for piece in delta.get("tool_calls", ())]
    assert pieces == [
        {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": ""}},
        {"index": 0, "custom": {"input": "*** Begin"}},
        {"index": 0, "custom": {"input": "\n***"}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "ls", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]


async def test_tools_reach_the_tokenizer_as_they_were_spelt(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    schema = '{ "type":"object",\n "properties": {"n": {"maximum": 1e5, "minimum": 1.0}, "a": {"const": "\\u00e9"}} }'
    content = (
        f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "Hi"}}], "parallel_tool_calls": false, '
        '"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": '
        f'[{{"type": "function", "function": {{"strict": true, "parameters": {schema}, "name": "f"}}}}]}}'
    )
    response = await client.post(PATH, content=content)
    assert response.status_code == 200, response.text
    conversation = tokenizer.requests[0].conversation
    assert conversation.tools[0] == conversation_pb2.Tool(
        name="f", kind=conversation_pb2.CALL_KIND_FUNCTION, parameters_json=schema, strict=True
    )
    assert conversation.tool_choice == conversation_pb2.ToolChoice(
        mode=conversation_pb2.TOOL_CHOICE_MODE_REQUIRED, allowed_names=["f"]
    )
    assert conversation.HasField("parallel_calls")
    assert not conversation.parallel_calls


async def test_the_next_turn_echoes_the_last(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = SCRIPTS["everything"]
    message = (await client.post(PATH, json=body())).json()["choices"][0]["message"]
    history = [
        {"role": "user", "content": "Hi"},
        message,
        {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "text", "text": "a.txt"}]},
    ]
    assert (await client.post(PATH, json=body(messages=history))).status_code == 200
    _, assistant, result = tokenizer.requests[1].conversation.messages
    assert [part.WhichOneof("kind") for part in assistant.parts] == ["reasoning", "text"]
    assert assistant.parts[0].reasoning.text == "hm"
    assert assistant.calls[0] == conversation_pb2.Call(
        call_id="call_a", name="ls", kind=conversation_pb2.CALL_KIND_FUNCTION, arguments="".join(HOSTILE)
    )
    assert (result.call_id, result.parts[0].text.text) == ("call_a", "a.txt")
