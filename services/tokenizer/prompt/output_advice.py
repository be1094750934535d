"""Output formats as advice to the model.

It stands at the end of the last message that the model is to answer, so that everything before it is as it would be
without.
"""

from __future__ import annotations

from dataclasses import replace

from services.tokenizer.conversation import Conversation, OutputFormat, Role

ADVISED = "the output format is advised to the model, not enforced"

_OBJECT = "Write your answer as one JSON object and nothing else: no text around it, no code fence."
_SCHEMA = "Write your answer as JSON of this JSON Schema and nothing else: no text around it, no code fence."


def with_advice(conversation: Conversation) -> Conversation:
    """The conversation with its output format as text; every message keeps its place."""
    if conversation.output_format is None:
        return conversation
    messages = list(conversation.messages)
    asking = [index for index, one in enumerate(messages) if one.role in (Role.USER, Role.TOOL)]
    index = asking[-1] if asking else len(messages) - 1
    content = messages[index].content
    advice = _advice(conversation.output_format)
    messages[index] = replace(messages[index], content=f"{content}\n\n{advice}" if content else advice)
    return replace(conversation, messages=tuple(messages))


def format_warnings(conversation: Conversation) -> tuple[str, ...]:
    """For the caller."""
    return () if conversation.output_format is None else (ADVISED,)


def _advice(output_format: OutputFormat) -> str:
    schema = output_format.schema_json
    return _OBJECT if schema is None else f"{_SCHEMA}\n{schema}"
