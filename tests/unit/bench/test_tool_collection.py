"""The report on the tools of a public collection, from a collection of four lines."""

import json
from pathlib import Path
from typing import Any

from bench.fences.tool_schemas import measure


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "dict", "properties": properties, "required": [*properties]}}


def test_each_distinct_tool_is_one_program_in_each_dialect(tmp_path: Path, smollm2_dir: Path) -> None:
    area = tool("area", width={"type": "float"}, unit={"type": "any"})
    tags = tool("tag", names={"type": "tuple", "items": {"type": "string"}, "uniqueItems": True})
    lines = [{"id": "1", "function": [area, tags]}, {"id": "2", "function": [area]}, tool("a>b", x={"type": "String"})]
    (tmp_path / "questions.json").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "1.json").write_text(json.dumps({"id": "1", "ground_truth": ["area()"]}, indent=2))
    report = measure(tmp_path, smollm2_dir)
    assert report.counts == {
        "chatml_json": {"whole": 2, "relaxed": 1},
        "qwen_xml": {"whole": 1, "relaxed": 1, "failed": 1},
        "glm_xml_4_5": {"whole": 2, "relaxed": 1},
        "deepseek_dsml_v4": {"whole": 2, "relaxed": 1},
    }
    assert report.keywords == {"uniqueItems": 4}
    assert [line.partition(":")[0] for line in report.failed] == ["qwen_xml a>b"]
