"""What the answer's text must look like."""

from __future__ import annotations

from typing import Any

import orjson
from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.fields import Fields


def parse_text_format(body: Fields) -> conversation_pb2.OutputFormat | None:
    """None for free text. Raises BadRequestError."""
    form = _format(body)
    if form is None:
        return None
    match form.one_of("type", ("text", "json_object", "json_schema")):
        case "json_object":
            return conversation_pb2.OutputFormat(json_object=conversation_pb2.JsonObject())
        case "json_schema":
            form.required_object("schema")
            return conversation_pb2.OutputFormat(
                json_schema=conversation_pb2.JsonSchema(
                    name=form.required_text("name"),
                    schema_json=form.raw("schema"),
                    strict=bool(form.flag("strict")),
                )
            )
        case _:
            return None


def echo_of_text(body: Fields) -> dict[str, Any]:
    """The field ``text`` in a response; ``body`` was parsed."""
    form, text = _format(body), body.object("text")
    echoed: dict[str, Any] = {"type": "text"}
    if form is not None and (kind := form.required_text("type")) != "text":
        echoed = {"type": kind}
        if kind == "json_schema":
            echoed |= {
                "name": form.required_text("name"),
                "description": form.text("description"),
                "schema": orjson.Fragment(form.raw("schema")),
                "strict": bool(form.flag("strict")),
            }
    verbosity = None if text is None else text.text("verbosity")
    return {"format": echoed} if verbosity is None else {"format": echoed, "verbosity": verbosity}


def _format(body: Fields) -> Fields | None:
    text = body.object("text")
    return None if text is None else text.object("format")
