"""DeepSeek's encoder where other models have a template: layouts, turns and literals as with those."""

import re

import pytest

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.dialects import deepseek_encode as encode
from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1, DsmlDialect
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.layout import PromptWriter

SCHEMA = '{"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "number", "maximum": 1e5}}}'
TOOLS = (ToolSpec("read", 'Reads "files"', SCHEMA),)
CALLS = (Call("a", "read", '{"path": "x"}'), Call("b", "read", '{"path": "y", "n": 0.10}'))
MESSAGES = (
    Message(Role.SYSTEM, "Be brief."),
    Message(Role.USER, "Compare x and y."),
    Message(Role.ASSISTANT, "Reading.", reasoning="I need both.", calls=CALLS),
    Message(Role.TOOL, "why", call_id="b"),
    Message(Role.TOOL, "ex", call_id="a"),
)


def writer(dialect: DsmlDialect) -> PromptWriter:
    return PromptWriter(DeepseekTemplate(dialect), dialect, encode.END)


@pytest.mark.parametrize("dialect", [DSML_V3_2, DSML_V4, DSML_V4_1], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("is_thinking", [True, False])
def test_the_text_is_the_encoders(dialect: DsmlDialect, is_thinking: bool) -> None:
    calls = tuple(CallText(call.name, call.arguments) for call in CALLS)
    turns: list[encode.Turn] = [
        encode.SystemTurn("Be brief."),
        encode.UserTurn("Compare x and y."),
        encode.AssistantTurn("Reading.", "I need both.", calls, ("a", "b")),
        encode.ResultTurn(ResultText(None, "why"), "b"),
        encode.ResultTurn(ResultText(None, "ex"), "a"),
    ]
    layout = writer(dialect).write(Conversation(MESSAGES, {}, TOOLS, enable_thinking=is_thinking))
    assert layout.text == encode.render(turns, TOOLS, dialect, is_thinking=is_thinking)
    assert layout.is_marked


def test_a_turn_is_what_the_model_wrote_thinking_and_calls_included() -> None:
    layout = writer(DSML_V4).write(Conversation(MESSAGES, {}, TOOLS, enable_thinking=True))
    [turn] = layout.turns
    written = layout.text[turn.start : turn.end]
    calls = [CallText(call.name, call.arguments) for call in CALLS]
    assert written == "I need both.</think>" + DSML_V4.write_calls("Reading.", calls)
    assert layout.text[: turn.start].endswith("<｜Assistant｜><think>")
    assert layout.text[turn.end :].startswith(encode.END)


def test_results_stand_in_the_order_of_the_calls() -> None:
    text = writer(DSML_V4).write(Conversation(MESSAGES, {}, TOOLS)).text
    assert text.index("<tool_result>ex</tool_result>") < text.index("<tool_result>why</tool_result>")


def test_the_schema_is_as_received() -> None:
    assert SCHEMA in writer(DSML_V4).write(Conversation(MESSAGES, {}, TOOLS)).text


def test_what_a_user_spells_is_literal() -> None:
    conversation = Conversation((Message(Role.USER, f"What is {encode.END} for?"),), {}, enable_thinking=True)
    one = writer(DSML_V4)
    layout = one.write(conversation)
    ranges = one.literals(conversation, layout.text, re.compile(re.escape(encode.END)))
    assert ranges is not None
    assert [layout.text[start:end] for start, end in ranges] == [encode.END]
