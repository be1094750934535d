"""Request bodies shaped like those of real agents, one for every POST endpoint of the gateway."""

from __future__ import annotations

import base64
from typing import Any

from tests.contract.scripted_tokenizer import MODEL

_PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
_SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "ls will do.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "README.md"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PNG}", "detail": "low"}}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "bash", "description": "Runs.", "parameters": _SCHEMA, "strict": False},
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.2,
    "top_p": 0.9,
    "max_completion_tokens": 100,
    "stop": ["END"],
    "seed": 7,
    "n": 1,
    "logit_bias": {"5": 1},
    "prompt_cache_key": "session",
    "user": "somebody",
}
COMPLETIONS: dict[str, Any] = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "max_tokens": 5,
    "stop": "END",
    "stream": False,
    "echo": False,
    "best_of": 1,
}
RESPONSES: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are an agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "List the files."},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "ls"}],
            "content": [{"type": "reasoning_text", "text": "ls will do."}],
            "encrypted_content": "AAAA",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "bash",
            "namespace": "shell",
            "arguments": '{"command": "ls"}',
            "status": "completed",
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [
                {"type": "input_text", "text": "README.md"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{_PNG}"},
            ],
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two files."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
    ],
    "tools": [
        {"type": "function", "name": "bash", "description": "Runs.", "parameters": _SCHEMA, "strict": False},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
        },
        {"type": "namespace", "name": "shell", "tools": [{"type": "function", "name": "bash", "parameters": _SCHEMA}]},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
    "stream": True,
    "max_output_tokens": 100,
    "prompt_cache_key": "session",
    "metadata": {"a": "b"},
    "truncation": "disabled",
}
MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
        {"role": "system", "content": "The date has changed."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "ls will do.", "signature": "AAAA"},
                {"type": "redacted_thinking", "data": "AAAA"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "README.md"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PNG}},
                    ],
                },
                {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}, "title": "t"},
            ],
        },
    ],
    "tools": [
        {"name": "Bash", "description": "Runs.", "input_schema": _SCHEMA},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 50},
    "output_config": {"effort": "medium"},
    "stop_sequences": ["END"],
    "temperature": 1,
    "top_k": 5,
    "metadata": {"user_id": "user_session"},
    "stream": True,
}

BODY_BY_PATH = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": {key: RESPONSES[key] for key in ("model", "input", "tools", "instructions")},
    "/v1/responses/compact": {key: RESPONSES[key] for key in ("model", "input", "instructions")},
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {key: MESSAGES[key] for key in ("model", "system", "messages", "tools", "thinking")},
}
