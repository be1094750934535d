"""Chat markup of each tokenizer's own family, reduced to what delimits messages."""

from __future__ import annotations

from dataclasses import dataclass

_CHATML = ("<|im_start|>{role}\n", "<|im_end|>\n")
_DELIMITERS = {
    "qwen3": _CHATML,
    "smollm2": _CHATML,
    "llama3": ("<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"),
    "gpt-oss": ("<|start|>{role}<|message|>", "<|end|>"),
    "deepseek-v4": ("<｜{Role}｜>", "<｜end▁of▁sentence｜>"),
}


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


def render(name: str, messages: list[Message]) -> str:
    """The prompt, ready for the assistant's next turn."""
    opening, closing = _DELIMITERS[name]
    turns = [opening.format(role=m.role, Role=_deepseek(m.role)) + m.content + closing for m in messages]
    return "".join(turns) + opening.format(role="assistant", Role="Assistant")


def _deepseek(role: str) -> str:
    return "Assistant" if role == "assistant" else "User"
