"""What comes out of a fence is what the tokenizer's dialects read and write: no byte differs."""

import os
import random
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case, drive
from bench.fences.programs import Mode
from services.tokenizer.dialects.events import CallText
from tests.unit.engine.fence.fetched import fetched
from tests.unit.engine.fence.real_dialects import DIALECTS, SPECS
from tests.unit.tokenizer.dialects.answers import add_up, parse

NUM_ANSWERS = 500 if os.environ.get("FENCEPOST_SOAK") else 8


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
