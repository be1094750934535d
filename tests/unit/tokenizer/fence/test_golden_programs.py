"""Each dialect's program of three tools, as it stands beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.tokenizer.dialects.events import ToolGrammar, ToolSpec
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.fence.callable import callable_tool
from services.tokenizer.fence.calls import CallRules, Thinking
from services.tokenizer.fence.program import GrammarSyntax
from tests.unit.tokenizer.fence.agent_tools import FLAG, fields, many, one_of, text, tool, whole
from tests.unit.tokenizer.fence.spelt import spelt

GOLDEN = Path(__file__).parent / "golden"
TOOLS = (
    tool(
        "read",
        fields(
            "path",
            path=text(minLength=1, format="uri"),
            mode=one_of("text", "bytes"),
            limit={"type": ["integer", "null"], "minimum": 0},
            at={"anyOf": [text(), whole()]},
            lines=many(whole()),
            quick=FLAG,
        ),
    ),
    tool("reader", {"type": "object"}),
    ToolSpec("sum", None, "", is_custom=True, grammar=ToolGrammar(GrammarSyntax.REGEX, "[0-9+]+")),
)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_program_is_as_it_was(name: str, request: pytest.FixtureRequest):
    found = [one for one in (callable_tool(DIALECTS[name], one) for one in TOOLS) if one is not None]
    assert len(found) == len(TOOLS)
    rules = CallRules(is_required=False, max_calls=1, thinking=Thinking.GATED, follows_text=False)
    draft = DIALECTS[name].fence(found, rules)
    assert draft is not None
    path = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(spelt(draft))
    assert path.read_text() == spelt(draft)
