"""Which tokens come from which part of a conversation."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.detokenize import decode
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.models import ServedModel, load_model
from services.tokenizer.prompt.builder import Prompt, PromptBuilder
from services.tokenizer.prompt.segments import Segment, SegmentKind, count_tokens, find_segments, segment_at
from tests.unit.tokenizer.prompt_builders import ROUTING, prompt_builder
from tests.unit.tokenizer.templates import SHOUTING, THINKING
from tests.unit.tokenizer.tiny_model import IM_START, write_tiny_model

SYSTEM, USER, ASSISTANT, TOOL = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL
READ = ToolSpec("read", "Reads.", '{"type": "object"}')
KINDS = {SYSTEM: SegmentKind.SYSTEM, TOOL: SegmentKind.RESULT}


def conversation(*messages: tuple[Role, str], tools: tuple[ToolSpec, ...] = ()) -> Conversation:
    return Conversation(tuple(Message(role, content) for role, content in messages), {}, tools)


def segmented(
    model: ServedModel, source: Conversation, builder: PromptBuilder | None = None
) -> tuple[Prompt, tuple[Segment, ...]]:
    prompt = (builder or prompt_builder(model)).build(source, ROUTING)
    segments = find_segments(source, prompt, model.end_text)
    if segments:
        assert segments[0].first_token == 0
        starts = [segment.first_token for segment in segments]
        assert all(start < following for start, following in pairwise([*starts, len(prompt.ids)]))
    counts = count_tokens(segments, len(prompt.ids))
    assert sum(count for _, count in counts) == len(prompt.ids)
    return prompt, segments


def texts(model: ServedModel, prompt: Prompt, segments: tuple[Segment, ...]) -> list[tuple[SegmentKind, int, str]]:
    ends = [*(segment.first_token for segment in segments[1:]), len(prompt.ids)]
    return [
        (one.kind, one.index, decode(model.vocabulary, prompt.ids[one.first_token : end].tolist()))
        for one, end in zip(segments, ends, strict=True)
    ]


@pytest.fixture(scope="module")
def tiny_builder(tiny: ServedModel) -> PromptBuilder:
    return prompt_builder(tiny)


def test_segments_are_where_messages_are(tiny: ServedModel) -> None:
    source = conversation((SYSTEM, "é!"), (USER, "hello"), (ASSISTANT, "😀"), (USER, ""))
    prompt, segments = segmented(tiny, source)
    kinds = [SegmentKind.SYSTEM, *[SegmentKind.MESSAGE] * 3, SegmentKind.GENERATION_PROMPT]
    assert [segment.kind for segment in segments] == kinds
    assert [segment.index for segment in segments] == [0, 1, 2, 3, 0]
    starts = [i for i, token_id in enumerate(prompt.ids.tolist()) if token_id == IM_START]
    assert [segment.first_token for segment in segments] == starts


@given(
    st.lists(st.tuples(st.sampled_from([SYSTEM, USER, ASSISTANT]), st.text("a \né<|im_end>", max_size=9)), min_size=1)
)
def test_each_message_has_its_own_tokens(
    tiny: ServedModel, tiny_builder: PromptBuilder, messages: list[tuple[Role, str]]
) -> None:
    prompt, segments = segmented(tiny, conversation(*messages), tiny_builder)
    expected = [
        (KINDS.get(role, SegmentKind.MESSAGE), index, f"<|im_start|>{role}\n{content}<|im_end|>\n")
        for index, (role, content) in enumerate(messages)
    ]
    role, content = messages[-1]
    if role is ASSISTANT and content.strip():
        expected[-1] = (*expected[-1][:2], f"<|im_start|>assistant\n{content}")
    else:
        expected.append((SegmentKind.GENERATION_PROMPT, 0, "<|im_start|>assistant\n"))
    assert texts(tiny, prompt, segments) == expected


def test_tools_are_a_segment_behind_the_system_message(tiny: ServedModel) -> None:
    source = conversation((SYSTEM, "Be brief."), (USER, "hello"), tools=(READ,))
    found = texts(tiny, *segmented(tiny, source))
    assert [(kind, index) for kind, index, _ in found] == [
        (SegmentKind.SYSTEM, 0),
        (SegmentKind.TOOLS, 0),
        (SegmentKind.MESSAGE, 1),
        (SegmentKind.GENERATION_PROMPT, 0),
    ]
    assert found[0][2] == "<|im_start|>system\nBe brief.\n\n"
    assert found[1][2] == tiny.dialect.write_tools([READ]) + "<|im_end|>\n"
    alone = texts(tiny, *segmented(tiny, conversation((USER, "hello"), tools=(READ,))))
    assert [(kind, index) for kind, index, _ in alone[:2]] == [(SegmentKind.TOOLS, 0), (SegmentKind.MESSAGE, 0)]


def test_calls_and_results_are_segments(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", THINKING), None, (), None)
    call = Message(ASSISTANT, "Well.", reasoning="hm", calls=(Call("1", "read", "{}"),))
    source = Conversation(
        (Message(USER, "hello"), call, Message(TOOL, "one"), Message(TOOL, "two"), Message(ASSISTANT, "")),
        {},
        (READ, ToolSpec("go", None, "{}")),
    )
    found = texts(model, *segmented(model, source))
    assert [(kind, index) for kind, index, _ in found] == [
        (SegmentKind.TOOLS, 0),
        (SegmentKind.MESSAGE, 0),
        (SegmentKind.MESSAGE, 1),
        (SegmentKind.RESULT, 2),
        (SegmentKind.RESULT, 3),
        (SegmentKind.MESSAGE, 4),
        (SegmentKind.GENERATION_PROMPT, 0),
    ]
    assert found[0][2].startswith("<|im_start|>system\n<tools>")
    assert found[2][2].startswith("<|im_start|>assistant\n<think>\nhm\n</think>\n\nWell.\n<tool_call>")
    assert found[3][2] == "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\n"


def test_smollm2_segments_cover_the_prompt(smollm2_dir: Path) -> None:
    model = load_model(smollm2_dir, None, (), None)
    source = conversation((USER, "In 2024,  12 spaces"), (ASSISTANT, "naïve ½"), (USER, "日本語 😀"))
    prompt, segments = segmented(model, source)
    starts = [i for i, token_id in enumerate(prompt.ids.tolist()) if token_id == IM_START]
    # The template's own system message belongs to the first message.
    assert [segment.first_token for segment in segments] == [0, *starts[2:]]


@pytest.mark.parametrize("template", [SHOUTING, "{% for m in messages %}{{ m.content | lower | title }}.{% endfor %}"])
def test_no_segments_where_the_template_hides_who_says_what(tmp_path: Path, template: str) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), None)
    prompt, segments = segmented(model, conversation((USER, "a"), (USER, "b")))
    assert segments == ()
    ((segment, count),) = count_tokens((), len(prompt.ids))
    assert (segment.kind, count) == (SegmentKind.UNSPECIFIED, len(prompt.ids))


def test_a_message_that_the_template_drops_has_no_segment(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), None)
    _, segments = segmented(model, conversation((USER, "a"), (USER, "b")))
    assert segments == (Segment(SegmentKind.MESSAGE, 1, 0),)


def test_a_message_inside_anothers_token_has_no_segment(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), None)
    _, segments = segmented(model, conversation((USER, "he"), (USER, "llo")))
    assert segments == (Segment(SegmentKind.MESSAGE, 0, 0),)
    _, segments = segmented(model, conversation((USER, "he"), (USER, "l"), (USER, "lo"), (USER, "!")))
    assert [segment.first_token for segment in segments] == [0, 1]


def test_text_has_no_segments(tiny: ServedModel) -> None:
    prompt = prompt_builder(tiny).build("hello", ROUTING)
    assert find_segments(conversation((USER, "hello")), prompt, tiny.end_text) == ()


def test_a_token_lies_in_the_segment_that_starts_last_before_it() -> None:
    segments = (Segment(SegmentKind.SYSTEM, 0, 0), Segment(SegmentKind.MESSAGE, 1, 4))
    assert [segment_at(segments, token) for token in (0, 3, 4, 99)] == [segments[0], segments[0], *[segments[1]] * 2]
    assert segment_at((), 0) is None
    assert count_tokens(segments, 9) == [(segments[0], 4), (segments[1], 5)]
