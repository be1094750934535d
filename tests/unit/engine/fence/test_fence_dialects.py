"""What comes out of a fence is what the tokenizer's dialects read and write: no byte differs."""

import json
import os
import random
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case, drive
from bench.fences.programs import Mode
from services.tokenizer.dialects.deepseek_dsml import DSML_V4
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import CallText, ToolSpec
from services.tokenizer.dialects.glm_xml import GLM_4_5
from services.tokenizer.dialects.registry import CHATML_JSON, QWEN_XML
from tests.unit.engine.fence.fetched import fetched
from tests.unit.tokenizer.dialects.answers import add_up, parse

NUM_ANSWERS = 500 if os.environ.get("FENCEPOST_SOAK") else 8
DIALECTS: dict[str, Dialect] = {
    "dsml": DSML_V4,
    "chatml_json": CHATML_JSON,
    "qwen_xml": QWEN_XML,
    "glm_xml": GLM_4_5,
}
SPECS = [ToolSpec(name, None, json.dumps(schema)) for name, schema in TOOLS.items()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_dialects_write_again_what_they_read(case: Case, smollm2_dir: Path) -> None:
    dialect = DIALECTS[case.id.partition("-")[0]]
    compiled = case.compile(fetched(case.vocabulary, smollm2_dir), TOOLS, Mode.REQUIRED)
    for number in range(NUM_ANSWERS):
        text = drive(case, compiled, random.Random(number), is_adversarial=number % 2 == 1).text.decode()
        answer = add_up(parse(dialect, [text], SPECS))
        assert answer.malformed == []
        assert answer.text == ""
        calls = [CallText(call.name, answer.finished[call.index], call.is_custom) for call in answer.started]
        assert dialect.write_calls("", calls) == text
