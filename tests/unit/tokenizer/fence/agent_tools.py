"""Twenty tools such as coding agents bring, with the calls that such agents make."""

from __future__ import annotations

import json
from typing import Any

from services.tokenizer.dialects.events import CallText, ToolSpec

Schema = dict[str, Any]


def text(**limits: Any) -> Schema:
    return {"type": "string", **limits}


def whole(**limits: Any) -> Schema:
    return {"type": "integer", **limits}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def many(items: Schema, **limits: Any) -> Schema:
    return {"type": "array", "items": items, **limits}


def fields(required: str, **properties: Schema) -> Schema:
    """An object with these properties; ``required`` names them, separated by blanks."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def tool(name: str, schema: Schema) -> ToolSpec:
    return ToolSpec(name, f"Does what {name} does.", json.dumps(schema))


def call(name: str, **arguments: Any) -> CallText:
    return CallText(name, json.dumps(arguments, ensure_ascii=False))


FLAG: Schema = {"type": "boolean"}

SCHEMAS: dict[str, Schema] = {
    "Bash": fields(
        "command",
        command=text(description="A line for the shell"),
        timeout=whole(minimum=1, maximum=600_000),
        description=text(maxLength=120),
        run_in_background=FLAG,
        env={"type": "object", "additionalProperties": text()},
    ),
    "Read": fields(
        "file_path",
        file_path=text(),
        offset=whole(minimum=0),
        limit=whole(exclusiveMinimum=0),
        pages=text(pattern="^[0-9]+(-[0-9]+)?$"),
    ),
    "Write": fields("file_path content", file_path=text(), content=text()),
    "Edit": fields(
        "file_path old_string new_string", file_path=text(), old_string=text(), new_string=text(), replace_all=FLAG
    ),
    "MultiEdit": fields(
        "file_path edits",
        file_path=text(),
        edits=many(fields("old_string new_string", old_string=text(), new_string=text(), replace_all=FLAG), minItems=1),
    ),
    "Glob": fields("pattern", pattern=text(), path=text()),
    "Grep": fields(
        "pattern",
        pattern=text(),
        path=text(),
        output_mode=one_of("content", "files_with_matches", "count"),
        **{"-A": whole(), "-n": FLAG},
        head_limit=whole(minimum=0),
    ),
    "WebFetch": fields("url prompt", url=text(format="uri"), prompt=text()),
    "WebSearch": fields("query", query=text(minLength=2), allowed_domains=many(text())),
    "TodoWrite": fields(
        "todos",
        todos=many(
            fields(
                "content status",
                content=text(minLength=1),
                status=one_of("pending", "in_progress", "completed"),
            )
        ),
    ),
    "Task": fields(
        "description prompt subagent_type",
        description=text(),
        prompt=text(),
        subagent_type=one_of("general-purpose", "explore", "plan"),
        isolation={"anyOf": [{"type": "null"}, one_of("worktree")]},
    ),
    "NotebookEdit": fields(
        "notebook_path new_source",
        notebook_path=text(),
        new_source=text(),
        cell_type=one_of("code", "markdown"),
    ),
    "AskUserQuestion": fields(
        "questions",
        questions=many(
            fields(
                "question header options",
                question=text(),
                header=text(maxLength=12),
                options=many(fields("label", label=text()), minItems=2, maxItems=4),
            ),
            minItems=1,
            maxItems=4,
        ),
    ),
    "KillShell": fields("shell_id", shell_id=text(pattern="^[a-z0-9]{6,12}$")),
    "shell": fields(
        "command",
        command=many(text(), minItems=1),
        workdir=text(),
        timeout_ms={"type": "number", "minimum": 0},
    ),
    "list_shells": fields(""),
    "update_plan": fields(
        "plan",
        explanation=text(),
        plan=many(fields("step status", step=text(), status=one_of("pending", "completed"))),
    ),
    "get_weather": fields(
        "city",
        city=text(),
        unit=one_of("celsius", "fahrenheit"),
        days=whole(minimum=1, maximum=14),
        coords={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Point"}]},
    )
    | {
        "$defs": {
            "Point": fields("lat lon", lat={"$ref": "#/$defs/Degrees"}, lon={"$ref": "#/$defs/Degrees"}),
            "Degrees": {"type": "number", "minimum": -180, "maximum": 180},
        }
    },
    "db_query": fields(
        "sql",
        sql=text(),
        params=many({"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]}),
        options={"type": "object", "properties": {"timeout_s": {"type": "number"}, "read_only": FLAG}},
    ),
    "schedule": fields(
        "when action",
        when={"anyOf": [text(), whole()]},
        action={
            "oneOf": [
                fields("kind cmd", kind={"const": "run"}, cmd=text()),
                fields("kind to", kind={"const": "mail"}, to=text()),
            ]
        },
        priority=whole(enum=[1, 2, 3]),
        labels=many(text(), uniqueItems=True, maxItems=5),
    ),
}

TOOLS = tuple(tool(name, schema) for name, schema in SCHEMAS.items())

CALLS = (
    call(
        "Bash",
        command="cd /repo && git log -5 2>&1 | grep '</div>'",
        timeout=120_000,
        run_in_background=False,
        env={"LC_ALL": "C"},
    ),
    call("Read", file_path="/repo/src/main.py", offset=10, limit=200, pages="3-7"),
    call("Write", content="", file_path="/repo/empty"),
    call(
        "Edit",
        file_path="a.html",
        old_string='<b class="x">\n\tHi</b>',
        new_string='"quoted" \\ back\n',
        replace_all=True,
    ),
    call("MultiEdit", edits=[{"old_string": "a</x>", "new_string": "é杭州\n"}], file_path="/repo/a.py"),
    call("Grep", pattern="class\\s+\\w+", output_mode="content", **{"-A": 3, "-n": True}),
    call("TodoWrite", todos=[]),
    call("Task", prompt="Look.", description="d", subagent_type="plan", isolation=None),
    call("Task", prompt="Look.", description="d", subagent_type="explore", isolation="worktree"),
    call("AskUserQuestion", questions=[{"question": "?", "header": "h", "options": [{"label": "a"}, {"label": "b"}]}]),
    call("KillShell", shell_id="abc123"),
    call("list_shells"),
    call("shell", timeout_ms=2.5, command=["ls", "-la"]),
    call("get_weather", city="杭州", unit="celsius", days=3, coords={"lat": 30.25, "lon": 120.17}),
    call("get_weather", coords=None, city=""),
    call("db_query", sql="SELECT 1 WHERE a < 3;", params=["x", 1.5, None, True], options={"read_only": True}),
    call("schedule", when=1800000000, action={"kind": "mail", "to": "a@b.c"}, priority=2, labels=["x", "y"]),
    call("schedule", when="tomorrow", action={"kind": "run", "cmd": "make"}),
)
"""Each fits its tool's schema."""

WRONG_CALLS = (
    call("Bash", timeout=5),
    call("Bash", command="ls", timeout=0),
    call("Bash", command="ls", timeout=[1]),
    call("Bash", command="ls", env={"A": 1}),
    call("Bash", command="ls", cwd="/"),
    call("Bash", command="ls", description="x" * 121),
    CallText("Bash", '{"command": "ls", "command": "rm"}'),
    CallText("Bash", '{"command": "ls", "timeout": 5, "timeout": 5}'),
    call("Read", file_path="a", pages="3-"),
    call("Write", file_path="a"),
    call("MultiEdit", file_path="a", edits=[]),
    call("MultiEdit", file_path="a", edits=[{"old_string": "a"}]),
    call("Grep", pattern="a", output_mode="lines"),
    call("Grep", pattern="a", **{"-n": 1}),
    call("WebSearch", query="a"),
    call("Task", prompt="a", description="d", subagent_type="plan", isolation="container"),
    call("KillShell", shell_id="ABC123"),
    call("list_shells", all=True),
    call("shell", command="ls -la"),
    call("get_weather", city="a", coords={"lat": 200, "lon": 0}),
    call("schedule", when=1, action={"kind": "mail", "cmd": "make"}),
    call("schedule", when=1, action={"kind": "run", "cmd": "make"}, priority=4),
    call("rm"),
)
"""None of them does."""
