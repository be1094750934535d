"""A session of a coding agent: 11.5k tokens of instructions and tools, and turns that bring it to some 83k."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from bench.corpus.markup import Message, render
from bench.corpus.texts import manuals, tool_result, tools

NUM_TURNS = 30
_STATIC_TOKENS = 11_500
_FINAL_TOKENS = 83_000
_FIRST_TURNS_TOKENS = (6_200, 5_800)
_CHARS_PER_TOKEN = 8
"""More than any text here has; what is too much is cut off."""


def session(name: str, tokenizer: Tokenizer, seed: int) -> Sequence[str]:
    """The prompt of each turn; each begins with the one before it."""
    return [render(name, messages) for messages in turns(tokenizer, seed)]


def turns(tokenizer: Tokenizer, seed: int = 0) -> Iterator[list[Message]]:
    """The messages that the agent sends in each turn."""
    source = random.Random(seed)
    messages = _opening(tokenizer, seed)
    yield list(messages)
    for turn, num_tokens in enumerate(_turn_tokens(source)):
        call = f'{{"name": "read_file", "arguments": {{"path": "src/module_{turn}.py", "timeout_ms": 10000}}}}'
        messages.append(
            Message("assistant", f"Step {turn}: I look at how the value is read before I change it.\n{call}")
        )
        messages.append(Message("tool", _first_tokens(tokenizer, _results(source, num_tokens), num_tokens - 60)))
        yield list(messages)


def first_prompt(name: str, tokenizer: Tokenizer, seed: int) -> str:
    """The prompt of the first turn alone; instructions and tools are the same in all sessions."""
    return render(name, _opening(tokenizer, seed))


def _opening(tokenizer: Tokenizer, seed: int) -> list[Message]:
    question = f"The test of case {seed} fails; find out why and mend it."
    return [_instructions(tokenizer), Message("user", question)]


def _instructions(tokenizer: Tokenizer) -> Message:
    rules = "You are a coding agent. Work step by step.\n\n" + "\n".join(text for _, text in manuals())
    tool_text = f"\n\n# Tools\n{tools()}"
    num_tool_tokens = len(tokenizer.encode(tool_text, add_special_tokens=False).ids)
    return Message("system", _first_tokens(tokenizer, rules, _STATIC_TOKENS - num_tool_tokens) + tool_text)


def _turn_tokens(source: random.Random) -> list[int]:
    """New tokens of each turn but the first: two long ones, then many that are short and some that are not."""
    weights = [source.lognormvariate(0, 0.6) for _ in range(NUM_TURNS - 1 - len(_FIRST_TURNS_TOKENS))]
    left = _FINAL_TOKENS - _STATIC_TOKENS - sum(_FIRST_TURNS_TOKENS)
    return [*_FIRST_TURNS_TOKENS, *(max(200, int(left * weight / sum(weights))) for weight in weights)]


def _results(source: random.Random, num_tokens: int) -> str:
    text = ""
    while len(text) < num_tokens * _CHARS_PER_TOKEN:
        text += tool_result(source)
    return text


def _first_tokens(tokenizer: Tokenizer, text: str, num_tokens: int) -> str:
    encoding = tokenizer.encode(text[: num_tokens * _CHARS_PER_TOKEN], add_special_tokens=False)
    return text[: encoding.offsets[num_tokens - 1][1]] if len(encoding.ids) > num_tokens else text
