import pytest

from services.tokenizer.dialects.registry import DIALECTS, dialect_for

CODER = "{{- '<function=' }}{%- set v = v | tojson if v is mapping else args_value | string %}"
NEWER = (
    "{{- '<function=' }}{%- set args_value = args_value | string if args_value is string else args_value | tojson %}"
)


@pytest.mark.parametrize(
    ("model_type", "template", "expected"),
    [
        ("llama", None, "chatml_json"),
        ("llama", "{{ messages }}", "chatml_json"),
        ("qwen3_moe", '<tool_call>\n{"name": ', "chatml_json"),
        ("qwen3_moe", CODER, "qwen_xml_python"),
        ("qwen3_moe", NEWER, "qwen_xml"),
        ("qwen3_5", None, "qwen_xml"),
        ("glm4_moe", "<arg_key>{{ k }}</arg_key>\n<arg_value>", "glm_xml_4_5"),
        ("glm4_moe", "<arg_key>{{ k }}</arg_key><arg_value>", "glm_xml_4_7"),
        ("glm4_moe", None, "glm_xml_4_5"),
        ("deepseek_v32", None, "deepseek_dsml_v3_2"),
        ("deepseek_v4", None, "deepseek_dsml_v4"),
    ],
)
def test_the_template_decides_before_the_model_type(model_type: str, template: str | None, expected: str):
    assert dialect_for(model_type, template, None).name == expected


def test_an_override_decides_alone():
    for name, dialect in DIALECTS.items():
        assert dialect_for("qwen3_5", NEWER, name) is dialect
    with pytest.raises(KeyError):
        dialect_for("qwen3_5", NEWER, "nonsense")
