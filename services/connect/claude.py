"""Claude Code: environment variables, which ``~/.claude/settings.json`` may set."""

from __future__ import annotations

from collections.abc import Mapping

from services.connect.client import NO_KEY, Client
from services.connect.json_file import merged
from services.connect.served import Target


def environment(target: Target) -> Mapping[str, str]:
    """Every name under which it asks for a model means this one."""
    return {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or NO_KEY,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        # It takes 200,000 for the context of a model that it doesn't know, and 100,000 for what is less here.
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.context_tokens),
    }


CLAUDE = Client(
    name="claude",
    title="Claude Code",
    folder_variable="CLAUDE_CONFIG_DIR",
    folder=".claude",
    file="settings.json",
    first_request_tokens=22_900,
    merge=lambda text, target: merged(text, {"env": dict(environment(target))}),
    variables_alone=environment,
)
