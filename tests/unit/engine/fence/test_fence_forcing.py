"""Files as an argument: legal at every position, what comes out is what went in, and its echo has the same ids."""

import json
import os
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case
from bench.fences.forcing import files_by_kind, first_illegal, ids_of
from bench.fences.programs import Mode
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence
from services.tokenizer.dialects.events import CallText
from tests.unit.engine.fence.fetched import fetched
from tests.unit.engine.fence.real_dialects import DIALECTS, SPECS
from tests.unit.tokenizer.dialects.answers import add_up, parse

NUM_FILES = None if os.environ.get("FENCEPOST_SOAK") else 2
"""Of each kind for each dialect and vocabulary; None: all."""
NUM_LEGAL = {"library": 2_000, "c++": 300, "html": 30, "javascript": 300, "markdown": 150}
"""Of all, at least."""
_MAX_CHARS = 500_000 if NUM_FILES is None else 4_000
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
def test_files_are_legal_arguments(
    case: Case, smollm2_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    compiled = case.compile(fetched(case.vocabulary, smollm2_dir), TOOLS, Mode.REQUIRED)
    for kind, files in files_by_kind().items():
        fates = Counter(fate_of(path, case, compiled) for path in files[:: len(files) // (NUM_FILES or len(files))])
        record_property(kind, ", ".join(f"{fate.value}: {count}" for fate, count in fates.items()))
        assert fates[Fate.LEGAL] >= (NUM_LEGAL[kind] if NUM_FILES is None else 1)


class Fate(Enum):
    """Of a file."""

    LEGAL = "legal and the same again"
    BINARY = "no text"
    LOSSY = "the tokenizer loses a character"
    IMPOSSIBLE = "contains the dialect's own terminator"


def fate_of(path: Path, case: Case, compiled: CompiledFence) -> Fate:
    """Fails where the file is an argument that the fence refuses, or that does not come back."""
    dialect = case.id.partition("-")[0]
    try:
        content = path.read_bytes().decode()[:_MAX_CHARS]
    except UnicodeDecodeError:
        return Fate.BINARY
    values = {"path": str(path), "content": content}
    if dialect == "chatml_json":
        values = {key: json.dumps(text, ensure_ascii=False) for key, text in values.items()}
    ids_by_marker = {compiled.tokens.spellings[one].decode(): one for one in compiled.program.marker_ids}
    if any(text in content for text in (*ids_by_marker, *([case.terminator] if case.terminator else []))):
        return Fate.IMPOSSIBLE
    text = _TEXTS[dialect].format(**values)
    ids = ids_of(compiled.tokens, text, ids_by_marker)
    if b"".join(compiled.tokens.spellings[token_id] for token_id in ids) != text.encode():
        return Fate.LOSSY
    fence = Fence(compiled)
    assert first_illegal(fence, ids) is None, path
    assert fence.is_finishable
    assert case.parse(text, TOOLS) == [("Write", [("file_path", str(path)), ("content", content)])]
    answer = add_up(parse(DIALECTS[dialect], [text], SPECS))
    (call,) = [CallText(call.name, answer.finished[call.index], call.is_custom) for call in answer.started]
    assert json.loads(call.arguments) == {"file_path": str(path), "content": content}
    assert ids_of(compiled.tokens, DIALECTS[dialect].write_calls("", [call]), ids_by_marker) == ids
    return Fate.LEGAL
