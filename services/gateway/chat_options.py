"""What a chat request asks of the answer as a whole: its format, and how much the model is to think."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.chat_tools import one_of
from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def parse_output_format(body: Fields) -> conversation_pb2.OutputFormat | None:
    """None for free text. Raises BadRequestError."""
    form = body.object("response_format")
    if form is None:
        return None
    match one_of(form, "type", ("text", "json_object", "json_schema")):
        case "json_object":
            return conversation_pb2.OutputFormat(json_object=conversation_pb2.JsonObject())
        case "json_schema":
            return conversation_pb2.OutputFormat(json_schema=_json_schema(form.required_object("json_schema")))
        case _:
            return None


def parse_reasoning(body: Fields) -> conversation_pb2.ReasoningOptions | None:
    """None leaves it to the model. Raises BadRequestError."""
    if body.values.get("reasoning_effort") is None:
        return None
    effort = one_of(body, "reasoning_effort", _EFFORTS)
    if effort == "none":
        return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_OFF)
    return conversation_pb2.ReasoningOptions(mode=conversation_pb2.REASONING_MODE_ON, effort=effort)


def _json_schema(fields: Fields) -> conversation_pb2.JsonSchema:
    name = fields.required_text("name")
    if not name:
        raise BadRequestError(f"'{fields.name('name')}' must not be empty.", param=fields.name("name"))
    fields.required_object("schema")
    return conversation_pb2.JsonSchema(name=name, schema_json=fields.raw("schema"), strict=bool(fields.flag("strict")))
