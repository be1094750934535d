"""DeepSeek's encoders against the prompts that the published ones make."""

from __future__ import annotations

import pytest

from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1, DsmlDialect
from services.tokenizer.dialects.deepseek_encode import (
    BEGIN,
    END,
    AssistantTurn,
    Effort,
    ResultTurn,
    SystemTurn,
    Turn,
    UserTurn,
    render,
)
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec
from tests.unit.tokenizer.dialects.answers import answer_of

LOOKUP = ToolSpec("lookup", "Look up a value", '{"type": "object", "properties": {"query": {"type": "string"}}}')
TOOL_LINE = (
    '{"name": "lookup", "description": "Look up a value", '
    '"parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}'
)
FIRST, SECOND = CallText("lookup", '{"query": "first"}'), CallText("lookup", '{"query": "second"}')
BUDGET = "Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
each = pytest.mark.parametrize("dialect", [DSML_V3_2, DSML_V4, DSML_V4_1], ids=lambda dialect: dialect.name)


def _result(text: str, call_id: str | None = None) -> ResultTurn:
    return ResultTurn(ResultText("lookup", text), call_id)


CHAT: list[Turn] = [SystemTurn("S"), UserTurn("q1"), AssistantTurn("a1", "r1"), UserTurn("q2")]
TOOL_CHAT: list[Turn] = [
    SystemTurn("S"),
    UserTurn("question"),
    AssistantTurn("summary", "reason", (FIRST, SECOND), ("a", "b")),
    _result("second result", "b"),
    _result("first result", "a"),
]


def test_v4_chat_closes_thinking_at_once() -> None:
    assert render(CHAT, [], DSML_V4, is_thinking=False) == (
        "<｜begin▁of▁sentence｜>S<｜User｜>q1<｜Assistant｜></think>a1<｜end▁of▁sentence｜>"
        "<｜User｜>q2<｜Assistant｜></think>"
    )


@pytest.mark.parametrize("dialect", [DSML_V3_2, DSML_V4], ids=lambda dialect: dialect.name)
def test_thinking_drops_earlier_reasoning_without_tools(dialect: DsmlDialect) -> None:
    assert render(CHAT, [], dialect, is_thinking=True) == (
        f"{BEGIN}S<｜User｜>q1<｜Assistant｜></think>a1{END}<｜User｜>q2<｜Assistant｜><think>"
    )


def test_v4_1_has_a_role_for_system_and_a_budget() -> None:
    assert render(CHAT, [], DSML_V4_1, is_thinking=True) == (
        f"{BEGIN}<｜System｜>{BUDGET}S<｜User｜>q1<｜Assistant｜></think>a1{END}<｜User｜>q2<｜Assistant｜><think>"
    )
    assert render([UserTurn("U")], [], DSML_V4_1, is_thinking=True, effort=Effort.MAX) == (
        f"{BEGIN}<｜System｜>{BUDGET.replace('75', '100')}<｜User｜>U<｜Assistant｜><think>"
    )
    assert render([UserTurn("U")], [], DSML_V4_1, is_thinking=False) == f"{BEGIN}<｜User｜>U<｜Assistant｜></think>"


def test_v4_1_marks_a_system_message_in_the_middle() -> None:
    turns = [SystemTurn("S"), UserTurn("q1"), AssistantTurn("a1"), SystemTurn("mid"), UserTurn("q2")]
    assert render(turns, [], DSML_V4_1, is_thinking=False) == (
        f"{BEGIN}<｜System｜>S<｜User｜>q1<｜Assistant｜></think>a1{END}<｜System｜>mid<｜User｜>q2<｜Assistant｜></think>"
    )
    assert render(turns[:-1], [], DSML_V4_1, is_thinking=True).endswith("<｜System｜>mid<｜Assistant｜><think>")


def test_v4_states_only_the_maximum_effort() -> None:
    high, most = (render(CHAT, [], DSML_V4, is_thinking=True, effort=one) for one in (Effort.HIGH, Effort.MAX))
    assert "Reasoning Effort" not in high
    assert most.startswith(f"{BEGIN}Reasoning Effort: Absolute maximum")
    assert most.endswith(high.removeprefix(BEGIN))
    assert render(CHAT, [], DSML_V4, is_thinking=False, effort=Effort.MAX).startswith(f"{BEGIN}S")


def test_v4_tools_follow_the_system_message() -> None:
    prompt = render([SystemTurn("S"), UserTurn("U")], [LOOKUP], DSML_V4, is_thinking=True)
    assert prompt == f"{BEGIN}S\n\n{DSML_V4.write_tools([LOOKUP])}<｜User｜>U<｜Assistant｜><think>"
    assert prompt.startswith(f"{BEGIN}S\n\n## Tools\n\nYou have access to a set of tools to help answer")
    assert f"### Available Tool Schemas\n\n{TOOL_LINE}\n\nYou MUST strictly follow" in prompt
    assert "to invoke tool calls.\n<｜User｜>U" in prompt


@each
def test_tools_without_a_system_message_get_an_empty_one(dialect: DsmlDialect) -> None:
    bare, empty = (
        render([*system, UserTurn("U")], [LOOKUP], dialect, is_thinking=False) for system in ([], [SystemTurn("")])
    )
    assert bare == empty


@pytest.mark.parametrize(
    ("dialect", "block", "space"),
    [(DSML_V4, "tool_calls", ""), (DSML_V4_1, " calls", " ")],
    ids=["v4", "v4_1"],
)
def test_later_versions_put_results_into_a_user_turn_in_call_order(
    dialect: DsmlDialect, block: str, space: str
) -> None:
    prompt = render(TOOL_CHAT, [LOOKUP], dialect, is_thinking=True)
    assert prompt[prompt.index("<｜User｜>question") :] == (
        "<｜User｜>question<｜Assistant｜><think>reason</think>summary\n\n"
        f"<｜DSML｜{block}>\n"
        f'<｜DSML｜{space}invoke name="lookup">\n'
        f'<｜DSML｜{space}parameter name="query" string="true">first</｜DSML｜{space}parameter>\n'
        f"</｜DSML｜{space}invoke>\n"
        f'<｜DSML｜{space}invoke name="lookup">\n'
        f'<｜DSML｜{space}parameter name="query" string="true">second</｜DSML｜{space}parameter>\n'
        f"</｜DSML｜{space}invoke>\n"
        f"</｜DSML｜{block}><｜end▁of▁sentence｜>"
        "<｜User｜><tool_result>first result</tool_result>\n\n"
        "<tool_result>second result</tool_result><｜Assistant｜><think>"
    )


def test_v4_joins_results_and_text_and_keeps_the_text_s_place() -> None:
    turns = [*TOOL_CHAT[:3], _result("2", "b"), UserTurn("note"), _result("1", "a"), UserTurn("go on")]
    assert "<｜User｜><tool_result>1</tool_result>\n\nnote\n\n<tool_result>2</tool_result>\n\ngo on<｜Assistant｜>" in (
        render(turns, [LOOKUP], DSML_V4, is_thinking=True)
    )


def test_v3_2_puts_results_behind_the_calls_in_the_order_given() -> None:
    prompt = render(TOOL_CHAT, [LOOKUP], DSML_V3_2, is_thinking=True)
    assert prompt.startswith(f"{BEGIN}S\n\n## Tools\n\nYou have access to a set of tools you can use to answer")
    assert (
        f"<functions>\n{TOOL_LINE}\n</functions>\n<｜User｜>question<｜Assistant｜><think>reason</think>summary"
        in prompt
    )
    assert prompt.endswith(
        f"\n</｜DSML｜function_calls>{END}\n\n<function_results>\n<result>second result</result>\n"
        "<result>first result</result>\n</function_results>\n\n<think>"
    )


def test_v3_2_drops_reasoning_before_the_last_question_also_with_tools() -> None:
    prompt = render([*TOOL_CHAT, AssistantTurn("a", "late"), UserTurn("next")], [LOOKUP], DSML_V3_2, is_thinking=True)
    assert "reason</think>" not in prompt
    assert "late" not in prompt
    assert prompt.endswith(f"</function_results>\n\n</think>a{END}<｜User｜>next<｜Assistant｜><think>")


@pytest.mark.parametrize("dialect", [DSML_V4, DSML_V4_1], ids=lambda dialect: dialect.name)
def test_with_tools_all_reasoning_stays(dialect: DsmlDialect) -> None:
    prompt = render(CHAT, [LOOKUP], dialect, is_thinking=True)
    assert prompt.endswith(f"<think>r1</think>a1{END}<｜User｜>q2<｜Assistant｜><think>")


@each
def test_a_turn_without_generation_prompt_ends_with_its_own_text(dialect: DsmlDialect) -> None:
    prompt = render(CHAT, [], dialect, is_thinking=True, add_generation_prompt=False)
    assert prompt.endswith("<｜User｜>q2")


@each
@pytest.mark.parametrize("is_thinking", [False, True])
def test_ds4_62_a_tool_round_extends_the_prompt_that_it_answered(dialect: DsmlDialect, is_thinking: bool) -> None:
    """Neither the reasoning nor the whitespace before the calls gets lost."""
    turns = TOOL_CHAT[:2]
    prompt = render(turns, [LOOKUP], dialect, is_thinking=is_thinking)
    for number in range(3):
        thought = f"reason {number}\n</think>" if is_thinking else ""
        sampled = thought + dialect.write_calls(f"text {number}\n" if number else "", [FIRST, SECOND])
        answer = answer_of(dialect, sampled, [LOOKUP], starts_in_reasoning=is_thinking)
        calls = tuple(CallText(*call) for call in answer.calls)
        turns = [
            *turns,
            AssistantTurn(answer.text, answer.reasoning, calls, ("a", "b")),
            _result("one", "a"),
            _result("two", "b"),
        ]
        extended = render(turns, [LOOKUP], dialect, is_thinking=is_thinking)
        assert extended.startswith(prompt + sampled + END)
        prompt = extended
