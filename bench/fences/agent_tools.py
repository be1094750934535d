"""Twenty tools such as coding agents bring, as (name, JSON Schema of the arguments)."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer"}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _text(description: str, **limits: Any) -> Schema:
    return {"type": "string", "description": description, **limits}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _list(items: Schema, **limits: Any) -> Schema:
    return {"type": "array", "items": items, **limits}


TOOLS: dict[str, Schema] = {
    "Bash": _object(
        ["command"],
        command=_text("What the shell runs"),
        timeout={"type": "integer", "minimum": 1, "maximum": 600_000},
        description=_text("Five words", maxLength=40),
        run_in_background=_FLAG,
        env={"type": "object", "additionalProperties": {"type": "string"}},
    ),
    "Read": _object(
        ["file_path"],
        file_path=_text("An absolute path"),
        offset={"type": "integer", "minimum": 0},
        limit={"type": "integer", "exclusiveMinimum": 0},
        pages=_text("Of a PDF", pattern="^[0-9]+(-[0-9]+)?$"),
    ),
    "Write": _object(["file_path", "content"], file_path=_TEXT, content=_text("All of the file")),
    "Edit": _object(
        ["file_path", "old_string", "new_string"],
        file_path=_TEXT,
        old_string=_text("What is there"),
        new_string=_text("What will be there"),
        replace_all=_FLAG,
    ),
    "MultiEdit": _object(
        ["file_path", "edits"],
        file_path=_TEXT,
        edits=_list(
            _object(["old_string", "new_string"], old_string=_TEXT, new_string=_TEXT, replace_all=_FLAG), minItems=1
        ),
    ),
    "Glob": _object(["pattern"], pattern=_TEXT, path=_TEXT),
    "Grep": _object(
        ["pattern"],
        pattern=_TEXT,
        path=_TEXT,
        glob=_TEXT,
        output_mode=_one_of("content", "files_with_matches", "count"),
        **{"-A": _COUNT, "-B": _COUNT, "-n": _FLAG, "-i": _FLAG},
        head_limit={"type": "integer", "minimum": 0},
        multiline=_FLAG,
    ),
    "WebFetch": _object(["url", "prompt"], url=_text("Where", format="uri"), prompt=_TEXT),
    "WebSearch": _object(["query"], query=_text("What", minLength=2), allowed_domains=_list(_TEXT)),
    "TodoWrite": _object(
        ["todos"],
        todos=_list(
            _object(
                ["content", "status"],
                content=_text("One thing", minLength=1),
                status=_one_of("pending", "in_progress", "completed"),
            )
        ),
    ),
    "Task": _object(
        ["description", "prompt", "subagent_type"],
        description=_TEXT,
        prompt=_TEXT,
        subagent_type=_one_of("general-purpose", "explore", "plan"),
        isolation={"anyOf": [{"type": "null"}, _one_of("worktree")]},
    ),
    "NotebookEdit": _object(
        ["notebook_path", "new_source"],
        notebook_path=_TEXT,
        new_source=_TEXT,
        cell_type=_one_of("code", "markdown"),
        edit_mode=_one_of("replace", "insert", "delete"),
    ),
    "AskUserQuestion": _object(
        ["questions"],
        questions=_list(
            _object(
                ["question", "header", "options"],
                question=_TEXT,
                header=_text("Short", maxLength=12),
                options=_list(_object(["label"], label=_TEXT), minItems=2, maxItems=4),
            ),
            minItems=1,
            maxItems=3,
        ),
    ),
    "KillShell": _object(["shell_id"], shell_id=_text("Which", pattern="^[a-z0-9]{6,12}$")),
    "shell": _object(
        ["command"],
        command=_list(_TEXT, minItems=1),
        workdir=_TEXT,
        timeout_ms={"type": "number", "minimum": 0},
        justification=_TEXT,
    ),
    "list_shells": _object([]),
    "update_plan": _object(
        ["plan"],
        explanation=_TEXT,
        plan=_list(_object(["step", "status"], step=_TEXT, status=_one_of("pending", "completed"))),
    ),
    "get_weather": _object(
        ["city"],
        city=_TEXT,
        unit=_one_of("celsius", "fahrenheit"),
        days={"type": "integer", "minimum": 1, "maximum": 14},
        coords={
            "anyOf": [
                {"type": "null"},
                _object(
                    ["lat", "lon"],
                    lat={"type": "number", "minimum": -90, "maximum": 90},
                    lon={"type": "number", "minimum": -180, "maximum": 180},
                ),
            ]
        },
    ),
    "db_query": _object(
        ["sql"],
        sql=_TEXT,
        params=_list({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}),
        options={
            "type": "object",
            "properties": {"timeout_s": {"type": "number"}, "tags": {"type": "object"}},
        },
    ),
    "schedule": _object(
        ["when", "action"],
        when={"anyOf": [{"type": "string"}, {"type": "integer"}]},
        action={
            "anyOf": [
                _object(["kind", "cmd"], kind={"const": "run"}, cmd=_TEXT),
                _object(["kind", "to", "body"], kind={"const": "mail"}, to=_TEXT, body=_TEXT),
            ]
        },
        priority={"type": "integer", "enum": [1, 2, 3]},
        labels=_list(_TEXT, uniqueItems=True, maxItems=5),
    ),
}


def options_of(schema: Schema) -> tuple[Schema | None, Schema | None]:
    """A parameter's string option and its other ones, as one schema."""
    if "anyOf" not in schema:
        return (schema, None) if schema.get("type") == "string" else (None, schema)
    strings = [option for option in schema["anyOf"] if option.get("type") == "string"]
    others = [option for option in schema["anyOf"] if option.get("type") != "string"]
    assert len(strings) <= 1
    rest = None if not others else others[0] if len(others) == 1 else {"anyOf": others}
    return (strings[0] if strings else None), rest
