"""What every dialect must do, as checks over generated conversations; ``test_conformance`` runs them.

A new dialect is a new ``Case`` in ``CASES``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from services.tokenizer.dialects.chatml_json import ChatmlJson
from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import CallFinished, CallText, Text, ToolSpec
from services.tokenizer.dialects.glm_xml import GLM_4_5, GLM_4_7
from services.tokenizer.dialects.json_text import is_json, quote
from services.tokenizer.dialects.qwen_xml import QwenXml
from services.tokenizer.dialects.schema import PYTHON_LITERALS
from tests.unit.tokenizer.dialects.answers import add_up, merged, parse, pieces

NUMBERS = ("0", "-0", "7", "1e5", "0.10", "-1.5E-3", "100000", "9007199254740993", "123456789012345678901234567890")
FRAGMENTS = (
    "<",
    "</",
    ">",
    '"',
    "'",
    "\\",
    "\n",
    "\r\n",
    "\t",
    " ",
    "{",
    "}",
    "`",
    "é",
    "漢",
    "😀",
    "e\u0301",
    "\u2028",
    "\x00",
    "2>&1",
    "null",
    "True",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "</function>",
    "<parameter=x>",
    "</parameter>",
    "<tool_response>",
    "<arg_key>",
    "</arg_value>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜parameter>",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A dialect, and what its format cannot say."""

    id: str
    dialect: Dialect
    openings: tuple[str, ...]
    """A text with one of these in it is not only text."""
    unwritable: str | None = None
    """A pattern of strings that the format has no way to write, since it has no escapes."""
    is_typed: bool = False
    """Types come from the schema: strings need a declaration where they look like JSON."""


_GLM_VALUE_END = r"</arg_value>\s*(<arg_key>|</?tool_call>)"
_DSML_OPENINGS = ("<｜DSML｜tool_calls>", "\\<｜DSML｜tool_calls>")
# Written, but as JSON with an escape: read back as the same value from another text.
_DSML_VALUE_END = "</｜DSML｜"

CASES = (
    Case("chatml_json", ChatmlJson(), ("<tool_call>",)),
    Case(
        "qwen_xml",
        QwenXml(),
        ("<tool_call>", "<function="),
        r"</parameter>\n{0,2}(<parameter=|</function>|</tool_call>)",
        is_typed=True,
    ),
    Case(
        "qwen_xml_python",
        QwenXml(has_python_scalars=True),
        ("<tool_call>", "<function="),
        r"</parameter>\n{0,2}(<parameter=|</function>|</tool_call>)",
        is_typed=True,
    ),
    Case("glm_4_5", GLM_4_5, ("<tool_call>",), _GLM_VALUE_END, is_typed=True),
    Case("glm_4_7", GLM_4_7, ("<tool_call>",), _GLM_VALUE_END, is_typed=True),
    Case("dsml_v3_2", DSML_V3_2, _DSML_OPENINGS, _DSML_VALUE_END),
    Case("dsml_v4", DSML_V4, _DSML_OPENINGS, _DSML_VALUE_END),
    Case("dsml_v4_1", DSML_V4_1, _DSML_OPENINGS, _DSML_VALUE_END),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant turn in canonical spelling, and the tools it was made with."""

    text: str
    calls: tuple[CallText, ...]
    tools: tuple[ToolSpec, ...]

    @property
    def expected(self) -> list[tuple[str, str]]:
        return [(call.name, call.arguments) for call in self.calls]


_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,8}", fullmatch=True)
_strings = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4).filter(str.isprintable), max_size=6).map("".join)
_scalars = st.sampled_from([*NUMBERS, "true", "false", "null"]) | _strings.map(quote)


def _array(values: Sequence[str]) -> str:
    return "[" + ", ".join(values) + "]"


def _object(members: Sequence[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{quote(key)}: {value}" for key, value in members) + "}"


_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(_array)
        | st.lists(st.tuples(_strings, inner), max_size=3, unique_by=lambda member: member[0]).map(_object)
    ),
    max_leaves=6,
)


@st.composite
def turns(draw: st.DrawFn, case: Case) -> Turn:
    """Any answer that ``case`` can write."""
    calls: list[CallText] = []
    tools: list[ToolSpec] = []
    for number in range(draw(st.integers(0, 3))):
        name = f"{draw(_names)}{number}"
        if draw(st.integers(0, 4)) == 0:
            calls.append(CallText(name, draw(_strings.filter(lambda text: _is_writable(case, text))), is_custom=True))
            tools.append(ToolSpec(name, None, "", is_custom=True))
            continue
        members = draw(st.lists(st.tuples(_names, _argument(case)), max_size=4, unique_by=lambda member: member[0]))
        calls.append(CallText(name, _object([(key, value) for key, (value, _) in members])))
        declared = [(key, schema) for key, (_, schema) in members if schema is not None]
        tools.append(ToolSpec(name, None, f'{{"type": "object", "properties": {_object(declared)}}}'))
    text = draw(_strings.filter(lambda text: is_plain_text(case, text)))
    return Turn(text, tuple(calls), tuple(tools))


def is_plain_text(case: Case, text: str) -> bool:
    return not text.lstrip().startswith("<think>") and not any(opening in text for opening in case.openings)


@st.composite
def _argument(draw: st.DrawFn, case: Case) -> tuple[str, str | None]:
    """A value, and its schema if it needs or gets one."""
    if not draw(st.booleans()):
        return draw(_values.filter(lambda value: not value.startswith('"') and _is_writable(case, value))), None
    text = draw(_strings.filter(lambda text: _is_writable(case, text)))
    needs_schema = case.is_typed and (is_json(text) or text in PYTHON_LITERALS)
    schema = '{"type": "string"}' if needs_schema or draw(st.booleans()) else None
    return quote(text), schema


def _is_writable(case: Case, text: str) -> bool:
    return case.unwritable is None or re.search(case.unwritable, text) is None


def check_round_trip(case: Case, turn: Turn) -> None:
    """parse(render(x)) = x and render(parse(y)) = y."""
    rendered = case.dialect.write_calls(turn.text, turn.calls)
    answer = add_up(parse(case.dialect, [rendered], turn.tools))
    assert answer.malformed == []
    assert (answer.text, answer.calls) == (turn.text, turn.expected)
    calls = [CallText(call.name, answer.finished[call.index], call.is_custom) for call in answer.started]
    assert case.dialect.write_calls(answer.text, calls) == rendered


def check_chunking(case: Case, text: str, tools: Sequence[ToolSpec], cuts: Sequence[int]) -> None:
    """However a text arrives, the events are the same but for where deltas are cut."""
    whole = merged(parse(case.dialect, [text], tools))
    add_up(whole)
    for parts in (pieces(text, cuts), list(text)):
        events = parse(case.dialect, parts, tools)
        add_up(events)
        assert merged(events) == whole


def check_cut_off(case: Case, turn: Turn, end: int) -> None:
    """A cut answer has the calls that were whole, and nothing of a marker in its text."""
    rendered = case.dialect.write_calls(turn.text, turn.calls)
    answer = add_up(parse(case.dialect, [rendered[:end]], turn.tools))
    assert answer.calls == turn.expected[: len(answer.calls)]
    if end == len(rendered):
        assert len(answer.calls) == len(turn.calls)
    if len(answer.started) > len(answer.finished):
        assert answer.malformed
    for event in answer.malformed:
        assert event.text in rendered


def check_text_is_prompt(case: Case, turn: Turn) -> None:
    """Text is held back only while it may still be the beginning of a block."""
    rendered = case.dialect.write_calls(turn.text, turn.calls)
    parser = case.dialect.parser(turn.tools, starts_in_reasoning=False)
    seen = ""
    for position, letter in enumerate(rendered, 1):
        seen += "".join(event.text for event in parser.push(letter) if isinstance(event, Text))
        assert turn.text.startswith(seen)
        held = turn.text[len(seen) : position]
        assert position > len(turn.text) or is_possible_start(case, held)


def is_possible_start(case: Case, held: str) -> bool:
    """Whether all of ``held`` may belong to a block's opening, or to a thinking tag at the answer's beginning."""
    starts = ["<think>", *case.openings]
    return held == "" or any(start.startswith(held.lstrip()) for start in starts)


def check_never_raises(case: Case, text: str, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool) -> None:
    """Any text gives well-ordered events, and finished calls have arguments that are JSON."""
    customs = {tool.name for tool in tools if tool.is_custom}
    events = parse(case.dialect, [text], tools, starts_in_reasoning=starts_in_reasoning)
    answer = add_up(events)
    letters = parse(case.dialect, list(text), tools, starts_in_reasoning=starts_in_reasoning)
    assert merged(letters) == merged(events)
    for event in events:
        if isinstance(event, CallFinished) and answer.started[event.index].name not in customs:
            assert is_json(event.arguments)
            assert event.arguments.startswith("{")
