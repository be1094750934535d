"""Incremental rendering gives what whole rendering gives, whatever becomes of a conversation."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.registry import CHATML_JSON
from services.tokenizer.errors import InvalidRequestError, TemplateError
from services.tokenizer.prompt import appending
from services.tokenizer.prompt.append_only import why_not
from services.tokenizer.prompt.appending import AppendingWriter, AppendLimits
from services.tokenizer.prompt.layout import Layout, PromptWriter
from services.tokenizer.prompt.template import ChatTemplate
from tests.unit.tokenizer.appending_templates import LLAMA3, LLAMA3_ALWAYS, SMOLLM2, TOOLS
from tests.unit.tokenizer.templates import SHOUTING, SYSTEM_FIRST
from tests.unit.tokenizer.tiny_model import CHATML

ALL = AppendLimits(min_chars=0)
PROVEN = {
    "smollm2": (SMOLLM2, "<|im_end|>"),
    "chatml": (CHATML, "<|im_end|>"),
    "llama3": (LLAMA3, "<|eot_id|>"),
    "llama3_always": (LLAMA3_ALWAYS, "<|eot_id|>"),
    "tools": (TOOLS, "<|im_end|>"),
    # What stands behind the loop, asked for a generation prompt or not, may look like what comes next.
    "system first": (SYSTEM_FIRST, "<|im_end|>"),
    "shouting": (SHOUTING, "<|im_end|>"),
    "end": (CHATML + "{% if not add_generation_prompt %}<|im_start|>{% endif %}", "<|im_end|>"),
}
TALK = (
    Message(Role.SYSTEM, "Be brief."),
    Message(Role.USER, "2+2?"),
    Message(Role.ASSISTANT, "4"),
    Message(Role.USER, "3+3?"),
)
WEATHER = ToolSpec("weather", "Of a city.", '{"type":"object"}')

contents = st.one_of(
    st.sampled_from(["", "hi", " hi ", "<|im_start|>user\n", "<|im_end|>", "forbidden", "a</think>b", "\ufdd0", "é😀"]),
    st.text(max_size=4),
)
messages = st.builds(
    Message,
    st.sampled_from(Role),
    contents,
    reasoning=st.sampled_from(["", "hm"]),
    calls=st.sampled_from([(), (Call("c", "weather", '{"a":1}'),)]),
    name=st.sampled_from([None, "ada"]),
)
values = st.sampled_from([1, True, 1.0, "1", {"a": 1, "b": 2}, {"b": 2, "a": 1}])
option_sets = st.one_of(st.just({}), st.fixed_dictionaries({"mode": values}), st.just({"tools": 1}))
tool_sets = st.sampled_from([(), (WEATHER,), (WEATHER, ToolSpec("b", None, "{}"))])


def prompt_writer(source: str, end_text: str = "<|im_end|>") -> PromptWriter:
    return PromptWriter(ChatTemplate(source, {"bos_token": "<s>"}), CHATML_JSON, end_text)


def talk(num_messages: int = 4, **changes: object) -> Conversation:
    return replace(Conversation(TALK[:num_messages], {}), **changes)


def num_appended() -> float:
    return REGISTRY.get_sample_value("fencepost_tokenizer_renderings_total", {"outcome": "appended"}) or 0


def outcome(write: AppendingWriter | PromptWriter, conversation: Conversation) -> Layout | str:
    try:
        return write.write(conversation, "k") if isinstance(write, AppendingWriter) else write.write(conversation)
    except (TemplateError, InvalidRequestError) as error:
        return repr(error)


@st.composite
def histories(draw: st.DrawFn) -> list[Conversation]:
    """States of one conversation: grown mostly, and edited, forked, rewound, or with other tools or options."""
    system = draw(st.sampled_from([(), (TALK[0],), (Message(Role.DEVELOPER, "Obey."),)]))
    state = Conversation((*system, draw(messages)), draw(option_sets), draw(tool_sets))
    states = [state]
    for _ in range(draw(st.integers(1, 6))):
        said = state.messages
        match draw(st.sampled_from(["grow", "grow", "grow", "edit", "rewind", "back", "tools", "options", "thinking"])):
            case "edit":
                index = draw(st.integers(0, len(said) - 1))
                state = replace(state, messages=(*said[:index], draw(messages), *said[index + 1 :]))
            case "rewind":
                state = replace(state, messages=said[: draw(st.integers(1, len(said)))])
            case "back":
                state = draw(st.sampled_from(states))
            case "tools":
                state = replace(state, tools=draw(tool_sets))
            case "options":
                state = replace(state, template_options=draw(option_sets))
            case "thinking":
                state = replace(state, enable_thinking=draw(st.sampled_from([None, True, False])))
            case _:
                state = replace(state, messages=(*said, *draw(st.lists(messages, min_size=1, max_size=3))))
        states.append(state)
    return states


@pytest.mark.parametrize("name", PROVEN)
@settings(deadline=None, max_examples=30)
@given(states=histories())
def test_incremental_rendering_is_whole_rendering(name: str, states: list[Conversation]) -> None:
    writer = prompt_writer(*PROVEN[name])
    appending_writer = AppendingWriter(writer, ALL)
    assert appending_writer.why_not is None
    for state in states:
        assert outcome(appending_writer, state) == outcome(writer, state)


FRAGMENTS = [
    "{{ message.content }}",
    "{{ messages[0].content }}",
    "{% set x = message.content %}",
    "{% set x = (x or '') + message.role %}",
    "{% if loop.first %}{% set x = 'first' %}{% endif %}",
    "{{ x }}",
    "{{ loop.index0 }}",
    "{% if loop.index0 == 0 %}0{% endif %}",
    "{% if loop.last %}last{% endif %}",
    "{{ seen.n }}{% set seen.n = seen.n + 1 %}",
    "{{ lazy | first }}",
    "{% for c in message.content | list | reverse %}{{ c }}{% if c == 'i' %}{% break %}{% endif %}{% endfor %}",
    "{% if message.role == 'assistant' %}{% continue %}{% endif %}",
    "{% if message.role == 'assistant' %}{% break %}{% endif %}",
    "{% set messages = [] %}",
    "{{ messages | length }}",
    "{% if add_generation_prompt %}!{% endif %}",
    "{% set block %}{{ x }}{{ message.role }}{% endset %}{{ block }}",
    "{% for x in [1, 2] %}{{ x }}{{ loop.index }}{% endfor %}",
    "{% generation %}{% set x = 'inner' %}{{ message.content | trim }}{% endgeneration %}",
]
ENDS = [
    "{{ x }}",
    "{{ message.content }}",
    "{{ messages[0].content }}",
    "{% if add_generation_prompt %}[{% endif %}",
    "]",
]
BEGINNINGS = ["", "{% set x = 'x' %}", "{% set x %}{{ messages[0].role }}{% endset %}"]


def proven_template(beginning: str, body: list[str], end: list[str]) -> str:
    """Of the fragments, those with which the template is still proven."""

    def put_together(body: list[str], end: list[str]) -> str:
        return f"{beginning}{{% for message in messages %}}[{''.join(body)}]{{% endfor %}}{''.join(end)}"

    kept_body: list[str] = []
    kept_end: list[str] = []
    for kept, fragment in [*((kept_body, one) for one in body), *((kept_end, one) for one in end)]:
        kept.append(fragment)
        if why_not(put_together(kept_body, kept_end)) is not None:
            kept.pop()
    return put_together(kept_body, kept_end)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(BEGINNINGS),
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=8),
    st.lists(st.sampled_from(ENDS), max_size=4),
    st.integers(1, 3),
)
def test_whatever_template_is_proven_renders_incrementally(
    beginning: str, body: list[str], end: list[str], num_known: int
) -> None:
    writer = prompt_writer(proven_template(beginning, body, end))
    appending_writer = AppendingWriter(writer, ALL)
    for num_messages in (num_known, 4):
        assert outcome(appending_writer, talk(num_messages)) == outcome(writer, talk(num_messages))


@pytest.mark.parametrize("name", ["smollm2", "chatml", "llama3", "tools"])
@pytest.mark.parametrize("tools", [(), (WEATHER,)])
def test_growth_regeneration_and_rewinding_are_appended(name: str, tools: tuple[ToolSpec, ...]) -> None:
    writer = prompt_writer(*PROVEN[name])
    appending_writer = AppendingWriter(writer, ALL)
    appending_writer.write(talk(2, tools=tools), "k")
    before = num_appended()
    other = (*TALK[:2], Message(Role.ASSISTANT, "five"))
    for said in (TALK, TALK, other, TALK[:2], TALK[:3], TALK):
        layout = appending_writer.write(Conversation(said, {}, tools), "k")
        assert layout == writer.write(Conversation(said, {}, tools))
    assert num_appended() == before + 6
    assert [turn.message for turn in layout.turns] == [2]


def test_results_that_become_one_message_are_not_split() -> None:
    writer = prompt_writer(CHATML)
    appending_writer = AppendingWriter(writer, ALL)
    result = Message(Role.TOOL, "sunny", call_id="c")
    for said in ((*TALK, result), (*TALK, result, result), (*TALK, result, result, TALK[1])):
        assert appending_writer.write(Conversation(said, {}), "k") == writer.write(Conversation(said, {}))


def test_conversations_do_not_mix() -> None:
    writer = prompt_writer(SMOLLM2)
    appending_writer = AppendingWriter(writer, ALL)
    appending_writer.write(talk(2), "a")
    before = num_appended()
    assert appending_writer.write(talk(), "b") == writer.write(talk())
    assert appending_writer.write(talk(), None) == writer.write(talk())
    assert num_appended() == before


@pytest.mark.parametrize(
    "limits",
    [
        AppendLimits(enabled=False, min_chars=0),
        AppendLimits(),
        AppendLimits(min_chars=0, max_chars=100),
    ],
)
def test_nothing_is_remembered_beyond_the_limits(limits: AppendLimits) -> None:
    appending_writer = AppendingWriter(prompt_writer(SMOLLM2), limits)
    appending_writer.write(talk(2), "k")
    before = num_appended()
    appending_writer.write(talk(), "k")
    assert num_appended() == before


def test_the_least_recently_used_conversation_is_forgotten() -> None:
    appending_writer = AppendingWriter(prompt_writer(SMOLLM2), AppendLimits(min_chars=0, entries=2))
    for anchor in ("a", "b", "a", "c"):
        appending_writer.write(talk(2), anchor)
    before = num_appended()
    appending_writer.write(talk(), "a")
    assert num_appended() == before + 1
    appending_writer.write(talk(), "b")
    assert num_appended() == before + 1


def test_an_error_is_that_of_whole_rendering_and_nothing_is_lost() -> None:
    writer = prompt_writer(TOOLS)
    appending_writer = AppendingWriter(writer, ALL)
    appending_writer.write(talk(2), "k")
    bad = Conversation((*TALK, Message(Role.USER, "forbidden")), {})
    with pytest.raises(TemplateError, match="a forbidden word"):
        appending_writer.write(bad, "k")
    before = num_appended()
    assert appending_writer.write(talk(), "k") == writer.write(talk())
    assert num_appended() == before + 1


def test_a_template_that_is_not_proven_is_rendered_whole() -> None:
    writer = prompt_writer(CHATML.replace("{% endfor %}", "{{ loop.length }}{% endfor %}"))
    appending_writer = AppendingWriter(writer, ALL)
    assert appending_writer.why_not == "line 1 of the chat template: loop.length"
    assert appending_writer.write(talk(2), "k") == writer.write(talk(2))
    assert appending_writer.write(talk(), "k") == writer.write(talk())


def prove_anything(source: str) -> None:
    return None


def test_verification_gives_the_right_prompt_and_switches_a_wrong_proof_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(appending, "why_not", prove_anything)
    writer = prompt_writer(CHATML.replace("{% endfor %}", "{% if loop.index0 == 3 %}fourth{% endif %}{% endfor %}"))
    unverified = AppendingWriter(writer, ALL)
    verified = AppendingWriter(writer, AppendLimits(min_chars=0, verify_rate=1.0))
    for appending_writer in (unverified, verified):
        appending_writer.write(talk(2), "k")
    assert unverified.write(talk(), "k") != writer.write(talk())
    assert verified.why_not is None
    assert verified.write(talk(), "k") == writer.write(talk())
    assert verified.why_not == "it was wrong"
    assert [r.levelno for r in caplog.records if "incremental rendering is switched off" in r.message] == [
        logging.WARNING
    ]
    assert verified.write(talk(3), "k") == writer.write(talk(3))


def test_a_wrong_proof_is_caught_where_the_first_message_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "why_not", prove_anything)
    writer = prompt_writer(CHATML.replace("{% endfor %}", "{% if loop.last %}the end{% endif %}{% endfor %}"))
    appending_writer = AppendingWriter(writer, ALL)
    for num_messages in (1, 2, 3, 4):
        assert appending_writer.write(talk(num_messages), "k") == writer.write(talk(num_messages))


def test_threads_may_share_a_conversation() -> None:
    writer = prompt_writer(SMOLLM2)
    appending_writer = AppendingWriter(writer, ALL)
    whole = {n: writer.write(talk(n)) for n in (1, 2, 3, 4)}
    with ThreadPoolExecutor(4) as pool:
        layouts = pool.map(lambda n: (n, appending_writer.write(talk(n), "k")), [1, 2, 3, 4] * 50)
        assert all(layout == whole[n] for n, layout in layouts)
