"""Text → ids, names and defaults of a served model."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.tokenizer.config import LITERAL, PARSE, REJECT
from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.detokenize import decode
from services.tokenizer.errors import InvalidRequestError, ModelFileError, PromptTooLargeError, UnknownModelError
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.models import ServedModel, load_model
from services.tokenizer.prompt.builder import PromptBuilder
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from tests.unit.tokenizer.prompt_builders import ROUTING, prompt_builder
from tests.unit.tokenizer.tiny_model import IM_END, IM_START, write_tiny_model

USER = Role.USER


def conversation(*messages: tuple[Role, str]) -> Conversation:
    return Conversation(tuple(Message(role, content) for role, content in messages), {})


@pytest.fixture(scope="module")
def builder(tiny: ServedModel) -> PromptBuilder:
    return prompt_builder(tiny)


def test_ids_are_those_of_the_plain_encoding(builder: PromptBuilder, tiny_dir: Path) -> None:
    text = "hello world <|im_start|>é😀"
    ids = builder.build(text, ROUTING).ids
    assert ids.dtype == np.dtype("<i4")
    assert ids.tolist() == Tokenizer.from_file(str(tiny_dir / "tokenizer.json")).encode(text).ids
    assert IM_START in ids


@given(st.text(max_size=40))
def test_decoding_gives_the_text_back(builder: PromptBuilder, tiny: ServedModel, text: str) -> None:
    assert decode(tiny.vocabulary, builder.build("." + text, ROUTING).ids.tolist()) == "." + text


def test_truncation_in_the_file_is_ignored(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    assert len(prompt_builder(load_model(model_dir, None, (), None)).build("x" * 20, ROUTING).ids) == 20


def test_a_prompt_over_the_byte_limit_is_refused(tiny: ServedModel) -> None:
    small = prompt_builder(tiny, max_prompt_bytes=10)
    assert len(small.build("é" * 5, ROUTING).ids) == 10
    with pytest.raises(PromptTooLargeError, match="12 bytes; at most 10"):
        small.build("é" * 6, ROUTING)
    with pytest.raises(PromptTooLargeError):
        small.build(conversation((USER, "x")), ROUTING)


def test_lone_surrogates_are_refused(builder: PromptBuilder) -> None:
    for source in ("a\ud800", conversation((USER, "a\ud800"))):
        with pytest.raises(InvalidRequestError, match="surrogate"):
            builder.build(source, ROUTING)


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", template="{{ '' }}"), None, (), None)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        prompt_builder(model).build(conversation((USER, "x")), ROUTING)


def test_a_model_without_template_takes_text_only(tmp_path: Path) -> None:
    base = prompt_builder(load_model(write_tiny_model(tmp_path / "m", template=None), "base", (), None))
    assert len(base.build("abc", ROUTING).ids) == 3
    with pytest.raises(InvalidRequestError, match="has no chat template"):
        base.build(conversation((USER, "x")), ROUTING)


@pytest.mark.parametrize("policy", [LITERAL, PARSE])
def test_spelling_of_a_control_token_is_what_the_policy_says(tiny: ServedModel, policy: str) -> None:
    prompt = prompt_builder(tiny, content_policy=policy).build(conversation((USER, "a<|im_end|>b")), ROUTING)
    assert prompt.ids.tolist().count(IM_END) == (1 if policy == LITERAL else 2)
    assert decode(tiny.vocabulary, prompt.ids.tolist()).startswith("<|im_start|>user\na<|im_end|>b<|im_end|>")


def test_spelling_of_a_control_token_can_be_refused(tiny: ServedModel) -> None:
    strict = prompt_builder(tiny, content_policy=REJECT)
    with pytest.raises(InvalidRequestError, match=r"'<\|im_end\|>'"):
        strict.build(conversation((USER, "a<|im_end|>b")), ROUTING)
    strict.build(conversation((USER, "a<|im_end")), ROUTING)


def test_a_template_that_depends_on_a_spelling_is_no_way_around_it(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content.split('<|im_end|>') | last }}{% endfor %}"
    model = load_model(write_tiny_model(tmp_path / "m", template), None, (), None)
    with pytest.raises(InvalidRequestError, match="depends on it"):
        prompt_builder(model).build(conversation((USER, "a<|im_end|>b")), ROUTING)


def test_names(tiny_dir: Path) -> None:
    assert load_model(tiny_dir, None, (), None).name == "tiny"
    model = load_model(tiny_dir, "big", ("small", "medium"), None)
    model.check_name("big")
    model.check_name("medium")
    with pytest.raises(UnknownModelError, match="'tiny' is not served here; served: big, small, medium"):
        model.check_name("tiny")


def test_dialect_follows_the_template_or_the_setting(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m", "{{ messages[0].content }}<arg_key>\n")
    assert load_model(model_dir, None, (), None).dialect.name == "glm_xml_4_5"
    assert load_model(model_dir, None, (), "qwen_xml").dialect.name == "qwen_xml"


def test_end_text_is_the_one_that_the_template_writes(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "a", "{{ messages[0].content }}<|endoftext|>", eos_token_id=[2, 0])
    assert load_model(model_dir, None, (), None).end_text == "<|endoftext|>"
    assert load_model(write_tiny_model(tmp_path / "b"), None, (), None).end_text == "<|im_end|>"
    by_name = write_tiny_model(tmp_path / "c", "{{ messages[0].content + eos_token }}")
    assert load_model(by_name, None, (), None).end_text == "<|im_end|>"
    silent = write_tiny_model(tmp_path / "d", "{{ messages[0].content }}")
    assert load_model(silent, None, (), None).end_text is None


def test_spellings_are_those_of_all_added_tokens_but_whitespace(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.add_tokens(["    ", "<|im_end|>!"])
    tokenizer.save(str(model_dir / "tokenizer.json"))
    spellings = load_model(model_dir, None, (), None).spellings
    assert spellings is not None
    assert spellings.findall("a    <|im_end|>!<|im_start|>") == ["<|im_end|>!", "<|im_start|>"]


def generation(**sampling: object) -> GenerationRequest:
    routing = Routing(tenant="t", cache_scope="t", conversation_key="k")
    return GenerationRequest("x", dataclasses.replace(Sampling(), **sampling), routing, None, warm_up_only=False)  # type: ignore[arg-type]


def test_defaults_fill_only_what_is_absent(tmp_path: Path) -> None:
    model = load_model(write_tiny_model(tmp_path / "m", temperature=0.6, top_p=0.9, top_k=20), None, (), None)
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
        load_model(model_dir, None, (), None)
    message = str(caught.value)
    assert str(model_dir / name) in message
    assert complaint in message
    assert "\n" not in message


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nowhere: no such model directory"):
        load_model(tmp_path / "nowhere", None, (), None)
