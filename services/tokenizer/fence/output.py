"""Programs of answers that are JSON."""

from __future__ import annotations

from services.tokenizer.conversation import OutputFormat
from services.tokenizer.dialects.reasoning import ThinkTags
from services.tokenizer.fence.calls import THINK_MARKERS, Thinking, behind_thinking
from services.tokenizer.fence.program import ProgramDraft, Value

_ANY_OBJECT = '{"type": "object"}'
PLACE = "output_format"


def write_output_program(output_format: OutputFormat, thinking: Thinking, tags: ThinkTags) -> ProgramDraft:
    """One JSON value and nothing around it.

    Numbers and strings may be spelt as the model likes: nobody parses the answer before it is sent back, as text.
    """
    schema = output_format.schema_json
    entry = Value(_ANY_OBJECT if schema is None else schema, PLACE, is_canonical=False)
    _, closing = THINK_MARKERS
    space = tags.closing[tags.closing.index(closing) + len(closing) :]
    return behind_thinking(thinking, tags, space, entry, (), ())
