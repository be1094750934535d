"""What a template takes is found by rendering."""

from pathlib import Path

import pytest

from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1, DsmlDialect
from services.tokenizer.dialects.deepseek_encode import END
from services.tokenizer.models import load_model
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.layout import PromptWriter
from services.tokenizer.prompt.manners import Manners
from tests.unit.tokenizer.templates import (
    ALTERNATING,
    ASKED,
    DROPPING,
    HOISTING,
    MACRO,
    NAMING,
    SHOUTING,
    SYSTEM_FIRST,
    THINKING,
    TRIMMING,
    writer_of,
)
from tests.unit.tokenizer.tiny_model import CHATML

NO_TOOLS = Manners(takes_results=False)


def manners(source: str) -> Manners:
    return writer_of(source).manners


@pytest.mark.parametrize("source", [CHATML, TRIMMING, MACRO, SHOUTING])
def test_most_templates_take_anything_but_tools(source: str) -> None:
    assert manners(source) == NO_TOOLS


@pytest.mark.parametrize("source", [THINKING, NAMING])
def test_tools_have_their_own_role_where_the_template_knows_them(source: str) -> None:
    assert manners(source) == Manners()


@pytest.mark.parametrize("source", [SYSTEM_FIRST, DROPPING])
def test_a_system_message_only_at_the_beginning(source: str) -> None:
    assert manners(source) == Manners(takes_systems_in_a_row=False, takes_system_anywhere=False, takes_results=False)


def test_a_system_message_that_is_moved_is_not_taken() -> None:
    assert manners(HOISTING) == Manners(takes_system_anywhere=False, takes_results=False)


def test_questions_and_answers_in_turn() -> None:
    assert manners(ALTERNATING) == Manners(
        takes_system=False,
        takes_systems_in_a_row=False,
        takes_system_anywhere=False,
        takes_users_in_a_row=False,
        takes_assistants_in_a_row=False,
        takes_any_beginning=False,
        takes_results=False,
    )


def test_a_question_somewhere() -> None:
    assert manners(ASKED) == Manners(takes_any_beginning=False, takes_results=False)


def test_a_template_that_shows_nothing_is_left_to_itself() -> None:
    assert manners("{{ raise_exception('no') }}") == NO_TOOLS
    assert manners("{% for tool in tools %}{{ tool | tojson }}{% endfor %}") == Manners()


def test_smollm2(smollm2_dir: Path) -> None:
    writer = load_model(smollm2_dir, None, (), None).writer
    assert writer is not None
    assert writer.manners == NO_TOOLS


@pytest.mark.parametrize("dialect", [DSML_V3_2, DSML_V4, DSML_V4_1], ids=lambda dialect: dialect.name)
def test_deepseeks_encoder_takes_anything(dialect: DsmlDialect) -> None:
    assert PromptWriter(DeepseekTemplate(dialect), dialect, END).manners == Manners()
