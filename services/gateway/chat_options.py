"""The format that a chat request asks of its answer."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields


def parse_output_format(body: Fields) -> conversation_pb2.OutputFormat | None:
    """None for free text. Raises BadRequestError."""
    form = body.object("response_format")
    if form is None:
        return None
    match form.one_of("type", ("text", "json_object", "json_schema")):
        case "json_object":
            return conversation_pb2.OutputFormat(json_object=conversation_pb2.JsonObject())
        case "json_schema":
            return conversation_pb2.OutputFormat(json_schema=_json_schema(form.required_object("json_schema")))
        case _:
            return None


def _json_schema(fields: Fields) -> conversation_pb2.JsonSchema:
    name = fields.required_text("name")
    if not name:
        raise BadRequestError(f"'{fields.name('name')}' must not be empty.", param=fields.name("name"))
    fields.required_object("schema")
    return conversation_pb2.JsonSchema(name=name, schema_json=fields.raw("schema"), strict=bool(fields.flag("strict")))
