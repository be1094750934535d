"""Request bodies as real clients send them."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from fencepost.tokenizer.v1 import conversation_pb2 as conv

from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.responses import request
from services.gateway.responses.request import ResponsesRequest

CAPSULE = b"\x00capsule\xff"
ENCRYPTED = base64.b64encode(CAPSULE).decode()
PNG = base64.b64encode(b"\x89PNG").decode()
PATCH_GRAMMAR = 'start: begin_patch hunk+ end_patch\nbegin_patch: "*** Begin Patch" LF\n'

EXEC_COMMAND = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
MCP_NAMESPACE = {
    "type": "namespace",
    "name": "mcp__docs__",
    "description": "Tools in the mcp__docs__ namespace.",
    "tools": [
        {
            "type": "function",
            "name": "search",
            "description": "Finds.",
            "strict": False,
            "parameters": {"type": "object"},
        },
        {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
    ],
}
WEB_SEARCH = {"type": "web_search", "external_web_access": False}

CODEX: dict[str, Any] = {
    "model": "gpt-5-codex",
    "instructions": "You are Codex.",
    "input": [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [EXEC_COMMAND, APPLY_PATCH, WEB_SEARCH, MCP_NAMESPACE],
        },
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions instructions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "high"},
            ],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Look around"}],
            "content": [{"type": "reasoning_text", "text": "I look around."}],
            "encrypted_content": ENCRYPTED,
        },
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "Looking."}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "exec_command",
            "arguments": '{"cmd": "ls"}',
            "call_id": "call_1",
        },
        {
            "type": "function_call",
            "name": "search",
            "namespace": "mcp__docs__",
            "arguments": '{"q":1e5}',
            "call_id": "call_2",
        },
        {"type": "custom_tool_call", "status": "completed", "call_id": "call_3", "name": "apply_patch", "input": "***"},
        {"type": "custom_tool_call_output", "call_id": "call_3", "output": "Done"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.py\n"},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [
                {"type": "input_text", "text": "See:"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            ],
        },
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Fixed."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0190-session",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}

AI_SDK: dict[str, Any] = {
    "model": "fencepost",
    "input": [
        {"role": "developer", "content": "You are opencode."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "encrypted_content": ENCRYPTED,
            "summary": [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Reading."}], "id": "msg_1"},
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path":"a"}', "id": "fc_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "text"},
    ],
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 32000,
    "prompt_cache_key": "ses_1",
    "tools": [{"type": "function", "name": "read", "description": "Reads.", "parameters": {"type": "object"}}],
    "tool_choice": "auto",
    "stream": True,
}

SDK_ECHO: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "user", "content": "Weather?"},
        {
            "id": "rs_1",
            "summary": [],
            "type": "reasoning",
            "content": [{"text": "Need the tool.", "type": "reasoning_text"}],
            "encrypted_content": None,
            "status": None,
        },
        {
            "id": "msg_1",
            "content": [
                {"annotations": [], "text": "One moment.", "type": "output_text", "logprobs": None, "parsed": None}
            ],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        },
        {
            "arguments": '{"city": "Oslo"}',
            "call_id": "call_1",
            "name": "weather",
            "type": "function_call",
            "id": "fc_1",
            "namespace": None,
            "status": "completed",
            "parsed_arguments": None,
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "rain", "output_text": None},
    ],
}

NO_TYPES: dict[str, Any] = {
    "model": "m",
    "input": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"summary": [{"type": "summary_text", "text": "Hm."}]},
        {"call_id": "a", "name": "f", "arguments": "{}"},
        {"call_id": "b", "name": "g", "input": "raw"},
        {"call_id": "c", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"call_id": "c", "output": "3"},
        {"call_id": "b", "output": "2"},
        {"call_id": "a", "output": "1"},
    ],
}

TOOL_CHOICE: dict[str, Any] = {
    "model": "m",
    "input": "Hi",
    "tools": [EXEC_COMMAND, APPLY_PATCH, MCP_NAMESPACE, {"type": "local_shell"}],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "search"}, {"type": "mcp", "server_label": "x"}],
    },
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    "metadata": {"a": "b"},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_logprobs": 3,
}

REAL = (CODEX, AI_SDK, SDK_ECHO, NO_TYPES, TOOL_CHOICE)


def fields_of(body: bytes) -> Fields:
    """A body as it is read."""
    return Fields(orjson.loads(body), RawJson(body))


def parse(body: dict[str, Any] | None = None, **changes: Any) -> ResponsesRequest:
    """A body, by default a small one, with changes."""
    values = {**({"model": "m", "input": "Hi"} if body is None else body), **changes}
    return request.parse(fields_of(orjson.dumps(values)))


def messages(*items: dict[str, Any]) -> list[conv.Message]:
    """What an input of these items says."""
    return list(parse(input=list(items)).conversation.messages)


def text(value: str) -> conv.Part:
    """A text part."""
    return conv.Part(text=conv.TextPart(text=value))


def spoken(role: conv.Role.ValueType, *texts: str, call_id: str | None = None) -> conv.Message:
    """A message of texts."""
    return conv.Message(role=role, parts=[text(one) for one in texts], call_id=call_id)


def thought(value: str, capsule: bytes | None = None) -> conv.Part:
    """A reasoning part."""
    return conv.Part(reasoning=conv.ReasoningPart(text=value, capsule=capsule))


def call(
    call_id: str, name: str, arguments: str, index: int = 0, *, is_custom: bool = False, namespace: str | None = None
) -> conv.Call:
    """A call."""
    return conv.Call(
        call_id=call_id,
        namespace=namespace,
        name=name,
        kind=conv.CALL_KIND_CUSTOM if is_custom else conv.CALL_KIND_FUNCTION,
        arguments=arguments,
        index=index,
    )
