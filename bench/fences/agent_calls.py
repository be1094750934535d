"""Calls as coding agents make them, with the tools of ``agent_tools``."""

from __future__ import annotations

from typing import Any

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "Bash",
        {
            "command": "cd /repo && git log --oneline -5 2>&1 | grep '</div>'",
            "timeout": 120000,
            "description": "Show recent commits",
            "run_in_background": False,
            "env": {"LC_ALL": "C"},
        },
    ),
    ("Bash", {"command": "python -m pytest -q tests/unit 2>&1 | tail -20"}),
    ("Read", {"file_path": "/repo/src/main.py", "offset": 10, "limit": 200}),
    ("Read", {"file_path": "/repo/README.md"}),
    (
        "Edit",
        {
            "file_path": "/repo/src/main.py",
            "old_string": "    return self.value\n",
            "new_string": "    if self.value is None:\n        raise KeyError(self.key)\n    return self.value\n",
            "replace_all": False,
        },
    ),
    ("Glob", {"pattern": "**/*.py", "path": "/repo"}),
    (
        "Grep",
        {"pattern": "class\\s+\\w+", "path": "/repo", "output_mode": "content", "-A": 3, "-n": True, "head_limit": 50},
    ),
    (
        "TodoWrite",
        {
            "todos": [
                {"content": "Find the bug", "status": "in_progress"},
                {"content": "Run the tests", "status": "pending"},
            ]
        },
    ),
    ("WebSearch", {"query": "llama tokenizer merges", "allowed_domains": ["example.org"]}),
    (
        "Task",
        {
            "description": "Find callers",
            "prompt": "List who calls load().",
            "subagent_type": "explore",
            "isolation": None,
        },
    ),
    ("get_weather", {"city": "杭州", "unit": "celsius", "days": 3, "coords": {"lat": 30.25, "lon": 120.17}}),
    (
        "db_query",
        {
            "sql": "SELECT * FROM t WHERE a < 3 AND b > 4;",
            "params": ["x", 1.5, None, True],
            "options": {"timeout_s": 2.5, "tags": {"who": "me"}},
        },
    ),
    (
        "schedule",
        {
            "when": "2026-11-29T10:00:00Z",
            "action": {"kind": "mail", "to": "a@b.example", "body": "hello"},
            "priority": 2,
            "labels": ["x", "y"],
        },
    ),
    ("shell", {"command": ["bash", "-lc", "ls -la"], "workdir": "/repo", "timeout_ms": 10000}),
    ("list_shells", {}),
)
