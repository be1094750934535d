"""Qwen's calls without their first tag: answers out of the tokenizer's program, judged by an independent parser."""

import dataclasses
import json
import os
import random
from functools import cache
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Answer, Case, drive, judge
from bench.fences.forcing import is_legal
from bench.fences.programs import Mode
from bench.fences.strict_parsers import parse_qwen_xml, parse_qwen_xml_untagged
from bench.fences.vocabularies import marker_ids
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence, Region
from services.engine.fence_fields import read_program
from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.dialects.events import CallText
from services.tokenizer.dialects.registry import QWEN_XML
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.fence_messages import write_program
from tests.unit.engine.fence.fetched import fetched
from tests.unit.engine.fence.real_dialects import SPECS
from tests.unit.tokenizer.dialects.answers import add_up, parse

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_ANSWERS = 1_000 if IS_SOAK else 5
THINK_IDS = {"<think>": "<repo_name>", "</think>": "<file_sep>"}
"""Stand-ins in a vocabulary without them."""
TAGS = ("<tool_call>\n", "\n</tool_call>")
CASE_BY_VOCABULARY = {
    name: dataclasses.replace(
        next(case for case in CASES if case.id == "qwen_xml-text"), vocabulary=name, parse=parse_qwen_xml_untagged
    )
    for name in ("smollm2", "qwen", *(("qwen3",) if IS_SOAK else ()))
}


@cache
def compiled_for(case: Case, smollm2_dir: Path, *, is_parallel: bool) -> CompiledFence:
    compiler = fetched(case.vocabulary, smollm2_dir)
    if case.vocabulary == "smollm2":
        ids = {tag: marker_ids(compiler, name)[name] for tag, name in THINK_IDS.items()}
    else:
        ids = marker_ids(compiler, "<tool_call>", "</tool_call>", *THINK_IDS)
    asked = Conversation((Message(Role.USER, "x"),), {}, tools=tuple(SPECS), parallel_calls=is_parallel)
    derived = Fences(QWEN_XML, ids).derive(asked, PromptEnd(False, False, False))
    assert derived is not None
    return compiler.compile(read_program(write_program(derived)), ids["</think>"], ids["<think>"])


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("case", CASE_BY_VOCABULARY.values(), ids=CASE_BY_VOCABULARY.keys())
def test_whatever_is_sampled_is_whole_and_read_back(case: Case, is_parallel: bool, smollm2_dir: Path) -> None:
    compiled = compiled_for(case, smollm2_dir, is_parallel=is_parallel)
    num_calls = 0
    for number in range(NUM_ANSWERS):
        rng = random.Random(f"{case.vocabulary} {is_parallel} {number}")
        answer = drive(
            case, compiled, rng, is_adversarial=number % 2 == 1, text_trigger=f"<function={rng.choice([*TOOLS])}>"
        )
        start = answer.text.index(b"<function=")
        block = answer.text[start:]
        calls = judge(Answer(block, answer.ids, 0), case, TOOLS, Mode.REQUIRED)
        assert len(calls) == 1 or is_parallel
        read = add_up(parse(QWEN_XML, [answer.text.decode(errors="replace")], SPECS))
        assert read.malformed == []
        assert [name for name, _ in read.calls] == [name for name, _ in calls]
        assert [[*json.loads(arguments)] for _, arguments in read.calls] == [
            [key for key, _ in one] for _, one in calls
        ]
        # Written anew it has all tags, and nothing else differs.
        rendered = QWEN_XML.write_calls("", [CallText(*call) for call in read.calls])
        assert without_tags(rendered) == without_tags(block.decode())
        num_calls += len(calls)
    assert (num_calls > NUM_ANSWERS) is is_parallel


@pytest.mark.parametrize("case", CASE_BY_VOCABULARY.values(), ids=CASE_BY_VOCABULARY.keys())
def test_calls_with_their_first_tag_have_all_of_them(case: Case, smollm2_dir: Path) -> None:
    case = dataclasses.replace(case, parse=parse_qwen_xml)
    compiled = compiled_for(case, smollm2_dir, is_parallel=True)
    for number in range(NUM_ANSWERS // 5):
        answer = drive(case, compiled, random.Random(number), is_adversarial=number % 2 == 1)
        block = answer.text[answer.text.index(b"<tool_call>") :]
        assert judge(Answer(block, answer.ids, 0), case, TOOLS, Mode.REQUIRED)
        read = add_up(parse(QWEN_XML, [block.decode()], SPECS))
        assert QWEN_XML.write_calls("", [CallText(*call) for call in read.calls]) == block.decode()


def without_tags(text: str) -> str:
    for tag in TAGS:
        text = text.replace(tag, "")
    return text


PROSE = (
    "The tag <function= starts one.",
    "a <function=unknown> b",
    "\n\n<function=",
    f"<function={next(iter(TOOLS))} >",
)


@pytest.mark.parametrize("text", PROSE)
@pytest.mark.parametrize("case", CASE_BY_VOCABULARY.values(), ids=CASE_BY_VOCABULARY.keys())
def test_what_names_no_tool_is_text_token_by_token(case: Case, text: str, smollm2_dir: Path) -> None:
    compiled = compiled_for(case, smollm2_dir, is_parallel=True)
    tokens = compiled.tokens
    for ids in (tokens.encode(text), [tokens.texts.index(bytes([byte])) for byte in text.encode()]):
        fence = Fence(compiled)
        for token_id in ids:
            assert is_legal(fence, token_id)
            assert fence.push(token_id)
            assert fence.region is Region.PROSE
            assert fence.is_finishable
    read = add_up(parse(QWEN_XML, [text], SPECS))
    assert not read.calls
    assert read.text + "".join(one.text for one in read.malformed) == text.lstrip()
