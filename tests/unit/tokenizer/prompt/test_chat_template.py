"""Conversation → text, by real and hostile templates."""

from pathlib import Path

import pytest

from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.dialects.registry import CHATML_JSON
from services.tokenizer.errors import InvalidRequestError, ModelFileError, TemplateError
from services.tokenizer.models import load_model
from services.tokenizer.prompt.layout import PromptWriter
from services.tokenizer.prompt.template import ChatTemplate, load_template
from tests.unit.tokenizer.prompt_builders import ROUTING, prompt_builder
from tests.unit.tokenizer.tiny_model import CHATML, write_tiny_model

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
HELLO = ({"role": "user", "content": "Hello!"},)


def render(source: str, *messages: Message, **options: object) -> str:
    writer = PromptWriter(ChatTemplate(source, {"bos_token": "<s>"}), CHATML_JSON, None)
    return writer.write(Conversation(messages or (Message(Role.USER, "Hello!"),), options)).text


def test_smollm2_puts_its_own_system_message_first(smollm2_dir: Path) -> None:
    template = load_template(smollm2_dir)
    assert template is not None
    assert template.render(HELLO, {}, add_generation_prompt=True) == (
        f"<|im_start|>system\n{SMOLLM2_SYSTEM}<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_keeps_a_given_system_message(smollm2_dir: Path) -> None:
    template = load_template(smollm2_dir)
    assert template is not None
    messages = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": " <b>3+3</b>? \n"},
    )
    assert template.render(messages, {}, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
        "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n <b>3+3</b>? \n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm2_prompt_has_its_known_ids(smollm2_dir: Path) -> None:
    builder = prompt_builder(load_model(smollm2_dir, "smollm2", (), None))
    source = Conversation((Message(Role.SYSTEM, "Hello, world!"), Message(Role.USER, "Hello!")), {})
    ids = builder.build(source, ROUTING).ids.tolist()
    assert ids == [1, 9690, 198, 19556, 28, 905, 17, 2, 198, 1, 4093, 198, 19556, 17, 2, 198, 1, 520, 9531, 198]


def test_developer_renders_as_system() -> None:
    assert render(CHATML, Message(Role.DEVELOPER, "x")).startswith("<|im_start|>system\nx<|im_end|>")


def test_a_name_reaches_the_template() -> None:
    assert render("{{ messages[0].name }}", Message(Role.USER, "x", name="ada")) == "ada"


def test_blocks_are_trimmed_and_loops_can_be_left() -> None:
    source = """
    {% for message in messages %}
        {% if loop.index > 1 %}
            {% break %}
        {% endif %}
{{ message.content }}
    {% endfor %}
"""
    assert render(source, Message(Role.USER, "a"), Message(Role.USER, "b")) == "\na\n"


def test_tojson_keeps_order_and_characters() -> None:
    assert render("{{ x | tojson }}", x={"z": "<é&>", "a": [1, 2.5, None]}) == '{"z": "<é&>", "a": [1, 2.5, null]}'


def test_generation_marks_are_transparent() -> None:
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


def test_special_tokens_and_options_are_variables() -> None:
    assert render("{{ bos_token }}{{ mood }}", mood="calm") == "<s>calm"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt"])
def test_an_option_cannot_replace_what_the_service_sets(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        render("x", **{name: 1})


def test_a_template_refuses_with_its_own_words() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ none + 'x' }}", "{{ missing.attribute }}", "{{ messages[9].x }}"]
)
def test_a_failing_template_refuses_the_conversation(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template"):
        render(source)


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_template_may_be_in_the_tokenizer_configuration(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m", template=None)
    config = model_dir / "tokenizer_config.json"
    assert load_template(model_dir) is None
    config.write_text('{"chat_template": "one", "bos_token": {"content": "<s>"}}')
    found = load_template(model_dir)
    assert found is not None
    assert found.render(HELLO, {}, add_generation_prompt=True) == "one"
    config.write_text(
        '{"chat_template": [{"name": "tools", "template": "no"}, {"name": "default", "template": "{{ bos_token }}"}],'
        ' "bos_token": {"content": "<s>"}}'
    )
    found = load_template(model_dir)
    assert found is not None
    assert found.render(HELLO, {}, add_generation_prompt=True) == "<s>"


def test_a_malformed_template_is_named_with_its_line(tmp_path: Path) -> None:
    model_dir = write_tiny_model(tmp_path / "m", template="fine\n{% for %}")
    with pytest.raises(ModelFileError, match=r"chat_template\.jinja: line 2"):
        load_template(model_dir)
