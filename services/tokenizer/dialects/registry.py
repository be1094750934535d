"""Which dialect a model speaks."""

from __future__ import annotations

from services.tokenizer.dialects.chatml_json import ChatmlJson
from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.glm_xml import GLM_4_5, GLM_4_7
from services.tokenizer.dialects.qwen_xml import QwenXml

CHATML_JSON = ChatmlJson()
QWEN_XML = QwenXml()
QWEN_XML_PYTHON = QwenXml(has_python_scalars=True)

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (CHATML_JSON, QWEN_XML, QWEN_XML_PYTHON, GLM_4_5, GLM_4_7, DSML_V3_2, DSML_V4, DSML_V4_1)
}
"""By name; the keys are what ``override`` may be."""

_BY_MODEL_TYPE: dict[str, Dialect] = {
    "qwen3_5": QWEN_XML,
    "qwen3_5_moe": QWEN_XML,
    "qwen3_coder": QWEN_XML_PYTHON,
    "glm4": GLM_4_5,
    "glm4_moe": GLM_4_5,
    "glm4_moe_lite": GLM_4_7,
    "glm_moe_dsa": GLM_4_7,
    "deepseek_v32": DSML_V3_2,
    "deepseek_v4": DSML_V4,
}
"""By ``model_type`` of config.json. DeepSeek's models have no template: V4.1 has to be named by override."""


def dialect_for(model_type: str, template: str | None, override: str | None) -> Dialect:
    """The dialect that ``override`` names (KeyError where none is called so); else the one in which the chat template
    writes calls, since models of one type differ; else the type's; else the one that most models speak."""
    if override is not None:
        return DIALECTS[override]
    return _written_by(template or "") or _BY_MODEL_TYPE.get(model_type, CHATML_JSON)


def _written_by(template: str) -> Dialect | None:
    if "<function=" in template:
        # Every scalar goes through `string`, or only strings do and the rest through `tojson`.
        return QWEN_XML_PYTHON if "else args_value | string" in template else QWEN_XML
    if "<arg_key>" in template:
        return GLM_4_7 if "</arg_key><arg_value>" in template else GLM_4_5
    if '{"name": ' in template and "<tool_call>" in template:
        return CHATML_JSON
    return None
