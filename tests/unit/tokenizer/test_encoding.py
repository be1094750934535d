"""Text → ids, segments, names and defaults of a served model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.detokenize import decode
from services.tokenizer.errors import (
    InvalidRequestError,
    ModelFileError,
    PromptTooLargeError,
    TemplateError,
    UnknownModelError,
)
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.models import ServedModel, load_model
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from services.tokenizer.segments import SegmentKind, count_tokens
from tests.unit.tokenizer.tiny_model import IM_END, IM_START, write_tiny_model

SYSTEM, USER, ASSISTANT = Role.SYSTEM, Role.USER, Role.ASSISTANT


def conversation(*messages: tuple[Role, str]) -> Conversation:
    return Conversation(tuple(Message(role, content) for role, content in messages), {})


def test_ids_are_those_of_the_plain_encoding(tiny: ServedModel, tiny_dir: Path) -> None:
    text = "hello world <|im_start|>é😀"
    ids = tiny.prompt(text).ids
    assert ids.dtype == np.dtype("<i4")
    assert ids.tolist() == Tokenizer.from_file(str(tiny_dir / "tokenizer.json")).encode(text).ids
    assert IM_START in ids


@given(st.text(max_size=40))
def test_decoding_gives_the_text_back(tiny: ServedModel, text: str) -> None:
    assert decode(tiny.vocabulary, tiny.prompt("." + text).ids.tolist()) == "." + text


def test_truncation_in_the_file_is_ignored(tiny_dir: Path, tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    assert len(load_model(model_dir, None, (), 10_000).prompt("x" * 20).ids) == 20


def test_a_prompt_over_the_byte_limit_is_refused(tiny_dir: Path) -> None:
    model = load_model(tiny_dir, None, (), 10)
    assert len(model.prompt("é" * 5).ids) == 10
    with pytest.raises(PromptTooLargeError, match="12 bytes; at most 10"):
        model.prompt("é" * 6)


def test_lone_surrogates_are_refused(tiny: ServedModel) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tiny.prompt("a\ud800")


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", template="{{ '' }}"), None, (), 100)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        model.prompt(conversation((USER, "x")))


def test_a_model_without_template_takes_text_only(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", template=None), "base", (), 100)
    assert len(model.prompt("abc").ids) == 3
    with pytest.raises(InvalidRequestError, match="'base' has no chat template"):
        model.prompt(conversation((USER, "x")))


def test_segments_are_where_messages_are(tiny: ServedModel) -> None:
    source = conversation((SYSTEM, "é!"), (USER, "hello"), (ASSISTANT, "😀"), (USER, ""))
    prompt = tiny.prompt(source)
    segments = tiny.segments(source, prompt)
    kinds = [SegmentKind.SYSTEM, *[SegmentKind.MESSAGE] * 3, SegmentKind.GENERATION_PROMPT]
    assert [segment.kind for segment in segments] == kinds
    assert [segment.index for segment in segments] == [0, 1, 2, 3, 0]
    starts = [i for i, token_id in enumerate(prompt.ids.tolist()) if token_id == IM_START]
    assert [segment.first_token for segment in segments] == starts
    assert sum(count for _, count in count_tokens(segments, len(prompt.ids))) == len(prompt.ids)


def test_smollm2_segments_cover_the_prompt(smollm2_dir: Path) -> None:
    model = load_model(smollm2_dir, None, (), 10_000)
    source = conversation((USER, "In 2024,  12 spaces"), (ASSISTANT, "naïve ½"), (USER, "日本語 😀"))
    prompt = model.prompt(source)
    segments = model.segments(source, prompt)
    starts = [i for i, token_id in enumerate(prompt.ids.tolist()) if token_id == IM_START]
    # The template's own system message belongs to the first message.
    assert [segment.first_token for segment in segments] == [0, *starts[2:]]


def test_no_segments_where_the_template_rewrites_earlier_messages(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), 100)
    source = conversation((USER, "a"), (USER, "b"))
    prompt = model.prompt(source)
    assert model.segments(source, prompt) == ()
    ((segment, count),) = count_tokens((), len(prompt.ids))
    assert (segment.kind, count) == (SegmentKind.UNSPECIFIED, len(prompt.ids))


def test_no_segments_where_a_boundary_lies_inside_a_token(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), 100)
    source = conversation((USER, "he"), (USER, "llo"))
    assert model.segments(source, model.prompt(source)) == ()


def test_no_segments_where_the_template_refuses_a_beginning(tmp_path: Path) -> None:
    template = "{% if messages | length < 2 %}{{ raise_exception('too few') }}{% endif %}x"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), 100)
    source = conversation((USER, "a"), (USER, "b"))
    assert model.segments(source, model.prompt(source)) == ()
    with pytest.raises(TemplateError):
        model.prompt(conversation((USER, "a")))


def test_names(tiny_dir: Path) -> None:
    assert load_model(tiny_dir, None, (), 100).name == "tiny"
    model = load_model(tiny_dir, "big", ("small", "medium"), 100)
    model.check_name("big")
    model.check_name("medium")
    with pytest.raises(UnknownModelError, match="'tiny' is not served here; served: big, small, medium"):
        model.check_name("tiny")


def generation(**sampling: object) -> GenerationRequest:
    routing = Routing(tenant="t", cache_scope="t", conversation_key="k")
    return GenerationRequest("x", dataclasses.replace(Sampling(), **sampling), routing, None, warm_up_only=False)  # type: ignore[arg-type]


def test_defaults_fill_only_what_is_absent(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", temperature=0.6, top_p=0.9, top_k=20), None, (), 100)
    completed = model.complete(generation(temperature=0.0, top_k=5)).sampling
    assert (completed.temperature, completed.top_p, completed.top_k) == (0.0, 0.9, 5)


def test_a_model_without_defaults_leaves_them_to_the_engine(tiny: ServedModel) -> None:
    completed = tiny.complete(generation()).sampling
    assert (completed.temperature, completed.top_p, completed.top_k) == (None, None, None)


def test_a_stop_text_that_is_a_special_token_stops_at_the_token(tiny: ServedModel) -> None:
    completed = tiny.complete(generation(stop_texts=("<|im_end|>", "x"), stop_token_ids=(9,))).sampling
    assert completed.stop_token_ids == (9, IM_END)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("tokenizer.json", None, "No such file"),
        ("tokenizer.json", '{"model"', "not a usable"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}', "tokenizer.json"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("generation_config.json", '{"temperature": "hot"}', "temperature is not a number"),
        ("generation_config.json", '{"top_p": 7}', "top_p must be"),
        ("config.json", "", "not JSON"),
        ("chat_template.jinja", "{% if", "line 1"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path: Path, name: str, content: str | None, complaint: str) -> None:
    model_dir = write_tiny_model(tmp_path / "m")
    if content is None:
        (model_dir / name).unlink()
    else:
        (model_dir / name).write_text(content)
    with pytest.raises(ModelFileError) as caught:
        load_model(model_dir, None, (), 100)
    message = str(caught.value)
    assert str(model_dir / name) in message
    assert complaint in message
    assert "\n" not in message


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nowhere: no such model directory"):
        load_model(tmp_path / "nowhere", None, (), 100)
