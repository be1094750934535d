"""Which chat templates are proven to append only."""

import pytest

from services.tokenizer.prompt.append_only import why_not
from tests.unit.tokenizer.appending_templates import LLAMA3, LLAMA3_ALWAYS, QWEN25, SMOLLM2, TOOLS
from tests.unit.tokenizer.templates import MACRO, NAMING, SHOUTING, THINKING, TRIMMING
from tests.unit.tokenizer.tiny_model import CHATML


def loop(body: str, before: str = "", after: str = "") -> str:
    return f"{before}{{% for message in messages %}}{{{{ message.content }}}}{body}{{% endfor %}}{after}"


@pytest.mark.parametrize("source", [SMOLLM2, CHATML, LLAMA3, LLAMA3_ALWAYS, TOOLS, TRIMMING, NAMING, SHOUTING])
def test_templates_that_only_append_are_proven(source: str) -> None:
    assert why_not(source) is None


@pytest.mark.parametrize(
    "body",
    [
        "{% if loop.first %}{{ messages[0].role }}{% endif %}",
        "{% if loop.index > 1 or loop.index0 != 0 %}x{% endif %}",
        "{% for part in message.parts | selectattr('text') %}{{ part.text }}{{ loop.last }}{% break %}{% endfor %}",
        "{% for key, value in options.items() %}{{ key }}{{ value | tojson }}{% else %}none{% endfor %}",
        "{% set parts = message.parts | map(attribute='text') | list %}{{ parts | join }}",
        "{% if message.role == 'system' and not loop.first %}{% continue %}{% endif %}",
        "{{ raise_exception('no') if message.content is not string }}",
    ],
)
def test_what_sees_its_own_message_is_proven(body: str) -> None:
    assert why_not(loop(body)) is None


@pytest.mark.parametrize(
    "source", [THINKING, MACRO, QWEN25, "", "{{ messages[0].content }}", "{{ messages | tojson }}"]
)
def test_templates_that_look_around_are_not(source: str) -> None:
    assert why_not(source) is not None


@pytest.mark.parametrize(
    "body",
    [
        "{{ loop.last }}",
        "{{ loop.length }}",
        "{{ loop.index }}",
        "{{ loop.index0 % 2 == 0 }}",
        "{{ loop.index0 == 1 }}",
        "{{ loop.index == true }}",
        "{{ loop.revindex }}",
        "{{ loop.previtem }}",
        "{{ loop.nextitem }}",
        "{{ loop['last'] }}",
        "{{ loop.cycle('a', 'b') }}",
        "{{ loop.changed(message.role) }}",
        "{% set here = loop %}{{ here.last }}",
        "{{ loop | attr('last') }}",
        "{% if message.role == 'user' %}{% break %}{% endif %}",
        "{% for part in message.parts %}{{ messages[loop.index].content }}{% endfor %}",
        "{% for part in message.parts %}{% else %}{{ loop.last }}{% endfor %}",
        "{% for part in message.parts if loop.last %}{{ part }}{% endfor %}",
        "{{ messages[1].content }}",
        "{{ messages[-1].content }}",
        "{{ messages[0:1] }}",
        "{{ messages | length }}",
        "{{ messages }}",
        "{{ self }}",
        "{{ add_generation_prompt }}",
        "{{ strftime_now('%d') }}",
        "{{ [1, 2] | random }}",
        "{{ [[1, 2]] | map('random') | list }}",
        "{{ lipsum() }}",
        "{{ message.content.unknown() }}",
        "{{ message.content is sameas messages[0].content }}",
        "{% set messages = [] %}",
        "{% set loop = 1 %}",
        "{% set ns.seen = true %}",
        "{% macro write(x) %}{{ x }}{% endmacro %}{{ write(message.content) }}",
        "{% filter upper %}x{% endfilter %}",
        "{% include 'other' %}",
    ],
)
def test_bodies_that_see_more_than_their_message_are_not(body: str) -> None:
    assert why_not(loop(body)) is not None


@pytest.mark.parametrize(
    "source",
    [
        loop("", before="{% set ns = namespace(n=0) %}"),
        loop("{% set ns.n = ns.n + 1 %}{{ ns.n }}", before="{% set ns = namespace(n=0) %}"),
        loop("{{ seen.append(1) }}{{ seen }}", before="{% set seen = [] %}"),
        loop("{{ first | first }}", before="{% set first = tools | map(attribute='name') %}"),
        loop("{{ first | first }}", before="{% set first = (tools | items) | default([]) %}"),
        loop("{{ turn() }}", before="{% set turn = cycler('a', 'b').next %}"),
        loop("", before="{{ messages | length }}"),
        loop("", before="{% if add_generation_prompt %}x{% endif %}"),
        loop("", after="{{ messages[1].content }}"),
        loop("", after="{{ messages | length }}"),
        loop("", after=loop("")),
        loop("", before="{% set messages = messages[1:] %}"),
        "{% if tools %}" + loop("") + "{% endif %}",
        "{% for message in messages if message.role != 'system' %}{{ message.content }}{% endfor %}",
        "{% for message in messages recursive %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{{ message.content }}{% else %}none{% endfor %}",
        "{% for message in messages | reverse %}{{ message.content }}{% endfor %}",
        "{% for messages in messages %}{{ messages.content }}{% endfor %}",
        "{% for message, other in messages %}{{ message }}{% endfor %}",
        "{% set all = messages %}{% for message in all %}{{ all | length }}{% endfor %}",
    ],
)
def test_state_that_outlives_a_message_and_odd_loops_are_not(source: str) -> None:
    assert why_not(source) is not None


def test_the_reason_names_the_line() -> None:
    assert why_not("{% for message in messages %}\n\n{{ loop.last }}{% endfor %}") == (
        "line 3 of the chat template: loop.last"
    )
