"""The real agents, as their users run them; nothing but the loopback interface is there for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from services.connect.claude import CLAUDE
from services.connect.client import Client
from services.connect.codex import CODEX
from services.connect.opencode import OPENCODE
from services.connect.served import find

PROGRAMS = Path(__file__).parents[2] / ".clients" / "node_modules" / ".bin"
PROMPT = "Run echo hi in the shell and tell me the output"
_TIMEOUT_S = 120
_QUIET_CODEX = """
check_for_update_on_startup = false
[analytics]
enabled = false
[feedback]
enabled = false
[otel]
exporter = "none"
"""
_QUIET_CLAUDE = {
    "IS_SANDBOX": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
}
_QUIET_OPENCODE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


@dataclass(frozen=True, slots=True)
class Agent:
    """One way of running a client. ``first`` begins a session, ``resume`` goes on with the last one."""

    name: str
    client: Client
    first: tuple[str, ...]
    resume: tuple[str, ...]
    environment: Mapping[str, str]
    present_config: str = ""
    gateway_flags: tuple[str, ...] = ()
    warms_up: bool = False
    """It has instructions and tools computed before there is a question."""

    def run(self, home: Path, url: str, *, resume: bool) -> subprocess.CompletedProcess[str]:
        """In ``home``, which is all that the agent knows of earlier runs, with what ``fencepost connect`` gives it."""
        work = home / "work"
        work.mkdir(parents=True, exist_ok=True)
        target = find(url, None, None)
        config = self.client.path(home, {})
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(self.client.merge(self.present_config, target))
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), **self.environment}
        return subprocess.run(
            [str(PROGRAMS / self.client.name), *(self.resume if resume else self.first), PROMPT],
            env={**environment, **self.client.variables(target)},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )


_CODEX_FLAGS = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
_CODEX_WEBSOCKET = Agent(
    name="codex-websocket",
    client=CODEX,
    first=("exec", *_CODEX_FLAGS),
    resume=("exec", "resume", "--last", *_CODEX_FLAGS),
    environment={},
    present_config=_QUIET_CODEX,
    warms_up=True,
)
_CLAUDE_FLAGS = ("-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
CLAUDE_CODE = Agent(
    name="claude",
    client=CLAUDE,
    first=_CLAUDE_FLAGS,
    resume=(*_CLAUDE_FLAGS, "-c"),
    environment=_QUIET_CLAUDE,
)
AGENTS = (
    _CODEX_WEBSOCKET,
    # It is refused an upgrade, and goes on over SSE.
    replace(_CODEX_WEBSOCKET, name="codex-sse", gateway_flags=("--websocket", "false"), warms_up=False),
    CLAUDE_CODE,
    Agent(
        name="opencode",
        client=OPENCODE,
        first=("run", "--format", "json"),
        resume=("run", "--format", "json", "-c"),
        environment=_QUIET_OPENCODE,
    ),
)
