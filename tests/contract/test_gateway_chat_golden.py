"""Chat streams byte for byte, and every chunk as the official client's types have it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from openai.types.chat import ChatCompletionChunk
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, call, finished, progress, reasoning, refusal, text

PATH = "/v1/chat/completions"
CALLS = finished(pb.FINISH_REASON_CALLS)
LOST = refusal("UNAVAILABLE", "ENGINE_LOST", "the engine ended its answer early; what has arrived is incomplete")
SCRIPTS: dict[str, list[Any]] = {
    "reasoning": [admitted(), progress(64), reasoning("Hm"), reasoning(", yes."), text("Yes."), finished()],
    "one_call": [admitted(), *call(0, "call_a", "ls", '{"path"', ': "/"}'), CALLS],
    "custom_call": [
        admitted(),
        text("I patch."),
        *call(0, "call_a", "patch", "*** Begin", " Patch\n", kind=conversation_pb2.CALL_KIND_CUSTOM),
        CALLS,
    ],
    "length": [admitted(), text("Hel"), finished(pb.FINISH_REASON_LENGTH)],
    "length_in_call": [admitted(), *call(0, "call_a", "ls", '{"path": ')[:-1], finished(pb.FINISH_REASON_LENGTH)],
    "stop_text": [admitted(), text("Hello"), finished(pb.FINISH_REASON_STOP_TEXT)],
    "error": [admitted(), text("Hel"), LOST],
}
ENDS = {
    "reasoning": "stop",
    "one_call": "tool_calls",
    "custom_call": "tool_calls",
    "length": "length",
    "length_in_call": "length",
    "stop_text": "stop",
}


@pytest.mark.parametrize("name", SCRIPTS)
async def test_streams_match_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any, name: str
) -> None:
    tokenizer.script = SCRIPTS[name]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    response = await client.post(PATH, json={**body, "stream_options": {"include_usage": True}})
    assert response.status_code == 200
    *frames, rest = response.content.split(b"\n\n")
    assert rest == b""
    values = [frame.removeprefix(b"data: ") for frame in frames]
    if name in ENDS:
        *chunks, done = values
        assert done == b"[DONE]"
        reasons = [choice["finish_reason"] for chunk in chunks for choice in orjson.loads(chunk)["choices"]]
        assert [reason for reason in reasons if reason] == [ENDS[name]]
    else:
        *chunks, last = values
        assert orjson.loads(last)["error"]["code"] == "service_unavailable"
    for chunk in chunks:
        if name != "custom_call":
            # The client's types of chunks know functions only.
            ChatCompletionChunk.model_validate_json(chunk, strict=True)
    stable = re.sub(rb"chatcmpl-[0-9a-f]{32}", b"chatcmpl-ID", response.content)
    golden(f"chat_{name}.sse", re.sub(rb'"created":\d+', b'"created":0', stable))


async def test_an_error_before_the_first_event_is_a_status(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [LOST]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    response = await client.post(PATH, json=body)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "service_unavailable"
