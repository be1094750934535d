"""Models that come with an encoder in place of a chat template, behind a template's interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.tokenizer.dialects import deepseek_encode
from services.tokenizer.dialects.deepseek_dsml import DsmlDialect
from services.tokenizer.dialects.deepseek_encode import AssistantTurn, Effort, ResultTurn, SystemTurn, Turn, UserTurn
from services.tokenizer.dialects.events import ResultText, ToolSpec
from services.tokenizer.dialects.json_text import decode_string, split_object
from services.tokenizer.prompt.tojson import JsonText

_EFFORTS: Final = {"low": Effort.LOW, "minimal": Effort.LOW, "max": Effort.MAX, "xhigh": Effort.MAX}


class DeepseekTemplate:
    """DeepSeek's encoder as a template that knows tools; an assistant's content has its calls in it."""

    source: Final = None
    """There is none to look at."""
    knows_tools: Final = True

    def __init__(self, dialect: DsmlDialect) -> None:
        self._dialect = dialect

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, object],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        is_marked: bool = False,
    ) -> str:
        """The prompt's text. ``is_marked``: strings carry marks, which are written out."""
        is_thinking = bool(options.get("enable_thinking", options.get("thinking", True)))
        return deepseek_encode.render(
            [_turn(message) for message in messages],
            [_tool(tool) for tool in tools or ()],
            self._dialect,
            is_thinking=is_thinking,
            effort=_EFFORTS.get(str(options.get("reasoning_effort", "high")), Effort.HIGH),
            add_generation_prompt=add_generation_prompt,
        )


def _turn(message: Mapping[str, Any]) -> Turn:
    # str() writes the marks of a marked string out.
    content = str(message["content"])
    match message["role"]:
        case "system":
            return SystemTurn(content)
        case "assistant":
            reasoning = str(message.get("reasoning_content", ""))
            return AssistantTurn(content, reasoning, call_ids=tuple(message.get("call_ids", ())))
        case "tool":
            return ResultTurn(ResultText(None, content), message.get("tool_call_id"))
        case _:
            return UserTurn(content)


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    """From the shape that templates take, the schema's text as received."""
    function = tool["function"]
    members = split_object(function.text) if isinstance(function, JsonText) else None
    assert members is not None, "tools are written by PromptWriter"
    text_by_key = {member.key: member.value for member in members}
    description = text_by_key.get("description")
    return ToolSpec(
        name=decode_string(text_by_key["name"]),
        description=None if description is None else decode_string(description),
        parameters_json=text_by_key["parameters"],
    )
