"""Thinking full of call markup: what the engine's fence takes for the beginning of a call, the parser does, too."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fences.forcing import is_legal
from bench.fences.vocabularies import compiler
from services.engine.fence.machine import Fence
from services.engine.fence.tokens import FenceTokens
from services.engine.fence_fields import read_program
from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import CallStarted, Reasoning
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.fence_messages import write_program
from tests.unit.tokenizer.fence.agent_tools import CALLS, TOOLS

NUM_ANSWERS = 300 if os.environ.get("FENCEPOST_SOAK") else 20
MAX_CHARS = 1_500
STAND_INS = {"<think>": b"<repo_name>", "</think>": b"<file_sep>"}
"""Added tokens of a vocabulary that has none for thinking."""


def tokens_at_random(dialect: Dialect, tokens: FenceTokens, ids: dict[str, int], rnd: random.Random) -> Iterator[int]:
    """Of markup, whole, cut short or byte by byte, and of the tags of thinking."""
    call = next(call for call in CALLS if call.name == TOOLS[0].name)
    texts = [dialect.write_calls("", [call]), dialect.write_calls("a", [call]), "\n", "\n\n", " ", "a", "<", "hm"]
    while True:
        text = rnd.choice([*texts, *texts, *ids])
        if text in ids:
            yield ids[text]
        elif rnd.random() < 0.2:
            yield from (tokens.texts.index(bytes([byte])) for byte in text.encode())
        else:
            yield from tokens.encode(text[: rnd.choice([len(text), rnd.randint(1, len(text))])])


@pytest.mark.parametrize("opens_itself", [True, False])
@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "plain"])
def test_fence_and_parser_agree_on_what_is_a_call(name: str, opens_itself: bool, smollm2_dir: Path) -> None:
    dialect, fences = DIALECTS[name], compiler("smollm2", smollm2_dir)
    tokens = fences.tokens
    ids = {tag: tokens.spellings.index(spelling) for tag, spelling in STAND_INS.items()}
    spelling_by_id = {ids[tag]: tag.encode() for tag in ids}
    tools = TOOLS[:3]
    conversation = Conversation((Message(Role.USER, "x"),), {}, tools=tools)
    derived = Fences(dialect, ids).derive(conversation, PromptEnd(not opens_itself, opens_itself, False))
    assert derived is not None
    compiled = fences.compile(read_program(write_program(derived)), ids["</think>"], ids["<think>"])
    num_thoughts = num_calls = 0
    for seed in range(NUM_ANSWERS):
        rnd = random.Random(seed)
        fence = Fence(compiled)
        calls_end_thinking = not derived.marks_thinking
        parser = dialect.parser(tools, starts_in_reasoning=not opens_itself, calls_end_thinking=calls_end_thinking)
        written: list[int] = [ids["<think>"]] if opens_itself and seed % 4 else []
        assert all(fence.push(token_id) for token_id in written)
        num_chars = 0
        for token_id in tokens_at_random(dialect, tokens, ids, rnd):
            if fence.is_inside or num_chars > MAX_CHARS:
                break
            if is_legal(fence, token_id):
                assert fence.push(token_id)
                written.append(token_id)
                num_chars += len(tokens.spellings[token_id])
        spelt = b"".join(spelling_by_id.get(token_id, tokens.spellings[token_id]) for token_id in written)
        text = spelt.decode(errors="replace")
        events = [*parser.push(text), *parser.finish()]
        thought = "".join(event.text for event in events if isinstance(event, Reasoning))
        if fence.is_inside:
            # No part of the call is left in the thinking.
            assert not thought or len(thought) <= text.rfind("</think>"), text
        else:
            assert not any(isinstance(event, CallStarted) for event in events), text
        num_calls += fence.is_inside
        num_thoughts += dialect.write_calls("", [CALLS[0]])[:8].strip() in thought
    assert num_thoughts > NUM_ANSWERS // 10
    assert num_calls > NUM_ANSWERS // 10
