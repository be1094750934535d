"""The tokenizer's programs in the engine's hands: what a dialect writes is legal to its end, and no wrong call is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fencepost.engine.v1 import fence_pb2

from bench.fences.forcing import first_illegal, ids_of
from bench.fences.vocabularies import compiler
from services.engine.fence.machine import Fence, Region
from services.engine.fence_fields import read_program
from services.tokenizer.conversation import Conversation, Message, Role, ToolMode
from services.tokenizer.dialects.events import CallFinished, Reasoning, Text
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.engine_messages import write_generate
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.fence_messages import write_program
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from tests.unit.tokenizer.fence.agent_tools import CALLS, TOOLS, WRONG_CALLS

_REFUSED = {"glm_xml_4_7"}
"""Without added tokens one of its tags ends where a value's text may run on into it: canonical tokens differ."""


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED], ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "plain"])
def test_calls_pass_as_their_dialect_writes_them(name: str, mode: ToolMode, smollm2_dir: Path) -> None:
    dialect = DIALECTS[name]
    conversation = Conversation((Message(Role.USER, "x"),), {}, tools=TOOLS, tool_mode=mode)
    derived = Fences(dialect, {}).derive(conversation, PromptEnd(False, False, False))
    assert derived is not None
    sent = fence_pb2.Program.FromString(write_program(derived).SerializeToString())
    compiled = compiler("smollm2", smollm2_dir).compile(read_program(sent))

    def is_legal(text: str) -> bool:
        fence = Fence(compiled)
        return first_illegal(fence, ids_of(compiled.tokens, text, {})) is None and fence.is_finishable

    calls = [call for call in CALLS if not (name.endswith("python") and '"coords": null' in call.arguments)]
    refused = [call.name for call in calls if not is_legal(dialect.write_calls("", [call]))]
    assert refused == [] or name in _REFUSED
    assert len(refused) <= 3
    calls = [call for call in calls if call.name not in refused]
    assert is_legal(dialect.write_calls("", calls[:3]))
    if mode is ToolMode.AUTO:
        assert is_legal(dialect.write_calls("Some text.", calls[3:5]))
        assert is_legal("Some text.")
    assert [call.name for call in WRONG_CALLS if is_legal(dialect.write_calls("", [call]))] == []


@pytest.mark.parametrize("opens_itself", [True, False])
@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "plain"])
def test_a_call_in_thinking_is_a_thought_to_both_halves(name: str, opens_itself: bool, smollm2_dir: Path) -> None:
    dialect = DIALECTS[name]
    tokens = compiler("smollm2", smollm2_dir).tokens
    # Stand-ins: this vocabulary has no such tokens.
    ids = {"<think>": tokens.spellings.index(b"<repo_name>"), "</think>": tokens.spellings.index(b"<file_sep>")}
    conversation = Conversation((Message(Role.USER, "x"),), {}, tools=TOOLS)
    derived = Fences(dialect, ids).derive(conversation, PromptEnd(not opens_itself, opens_itself, False))
    assert derived is not None
    request = GenerationRequest("x", Sampling(), Routing("t", "t", "k"), None, warm_up_only=False, fence=derived)
    sent = write_generate(request, np.array([1], np.int32))
    compiled = compiler("smollm2", smollm2_dir).compile(
        read_program(sent.fence), sent.reasoning.end_id, sent.reasoning.start_id
    )
    call = next(call for call in CALLS if call.name == "Bash")
    thought = f"I could write this: {dialect.write_calls('Hm.', [call])}\nNot yet."
    opening = "<think>" if opens_itself else ""
    said = dialect.write_calls("So be it.", [call])

    fence = Fence(compiled)
    assert first_illegal(fence, ids_of(tokens, f"{opening}{thought}", ids)) is None
    assert fence.region is Region.REASONING
    assert first_illegal(fence, ids_of(tokens, f"</think>\n\n{said}", ids)) is None
    assert fence.is_finishable

    parser = dialect.parser(TOOLS, starts_in_reasoning=not opens_itself, calls_end_thinking=not derived.marks_thinking)
    events = [*parser.push(f"{opening}{thought}</think>\n\n{said}"), *parser.finish()]
    assert "".join(event.text for event in events if isinstance(event, Reasoning)).strip() == thought
    assert "".join(event.text for event in events if isinstance(event, Text)).strip() == "So be it."
    assert len([event for event in events if isinstance(event, CallFinished)]) == 1
