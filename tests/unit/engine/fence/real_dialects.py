"""The dialects and tools of the cases that drive fences, as the tokenizer has them."""

import json

from bench.fences.agent_tools import TOOLS
from services.tokenizer.dialects.deepseek_dsml import DSML_V4
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.glm_xml import GLM_4_5
from services.tokenizer.dialects.registry import CHATML_JSON, QWEN_XML

DIALECTS: dict[str, Dialect] = {
    "dsml": DSML_V4,
    "chatml_json": CHATML_JSON,
    "qwen_xml": QWEN_XML,
    "glm_xml": GLM_4_5,
}
SPECS = [ToolSpec(name, None, json.dumps(schema)) for name, schema in TOOLS.items()]
