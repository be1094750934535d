"""Files of the standard library as an argument: legal at every position, and what comes out is what went in."""

import json
import os
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case
from bench.fences.forcing import first_illegal, ids_of, library_files
from bench.fences.programs import Mode
from bench.fences.vocabularies import marker_ids
from services.engine.fence.machine import Fence
from tests.unit.engine.fence.fetched import fetched

NUM_FILES = None if os.environ.get("FENCEPOST_SOAK") else 4
"""For each dialect and vocabulary; None: all."""
_MAX_CHARS = 40_000 if NUM_FILES is None else 8_000
_TEXTS = {
    "dsml": (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="Write">\n'
        '<｜DSML｜parameter name="file_path" string="true">{path}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="content" string="true">{content}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    "chatml_json": (
        '<tool_call>\n{{"name": "Write", "arguments": {{"file_path": {path}, "content": {content}}}}}\n</tool_call>'
    ),
    "qwen_xml": (
        "<tool_call>\n<function=Write>\n<parameter=file_path>\n{path}\n</parameter>\n"
        "<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm_xml": (
        "\n<tool_call>Write\n<arg_key>file_path</arg_key>\n<arg_value>{path}</arg_value>\n"
        "<arg_key>content</arg_key>\n<arg_value>{content}</arg_value>\n</tool_call>"
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_files_are_legal_arguments(case: Case, smollm2_dir: Path) -> None:
    fences = fetched(case.vocabulary, smollm2_dir)
    compiled = case.compile(fences, TOOLS, Mode.REQUIRED)
    markers = marker_ids(fences, *case.markers)
    dialect = case.id.partition("-")[0]
    files = library_files()
    num_files = 0
    for path in files[:: len(files) // (NUM_FILES or len(files))]:
        try:
            content = path.read_bytes().decode()[:_MAX_CHARS]
        except UnicodeDecodeError:
            continue
        values = {"path": str(path), "content": content}
        if dialect == "chatml_json":
            values = {key: json.dumps(text, ensure_ascii=False) for key, text in values.items()}
        text = _TEXTS[dialect].format(**values)
        ids = ids_of(fences.tokens, text, markers)
        if b"".join(fences.tokens.spellings[token_id] for token_id in ids) != text.encode():
            continue  # the tokenizer itself loses some control characters
        fence = Fence(compiled)
        assert first_illegal(fence, ids) is None, path
        assert fence.is_finishable
        (call,) = case.parse(text, TOOLS)
        assert call == ("Write", [("file_path", str(path)), ("content", content)])
        num_files += 1
    assert num_files >= (NUM_FILES or 2_000)
