"""What the agents' configuration files become."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from services.connect.claude import CLAUDE
from services.connect.client import Client
from services.connect.codex import CODEX
from services.connect.opencode import OPENCODE
from services.connect.served import Target

TARGET = Target("http://127.0.0.1:8000", "qwen3", 32_768, None)
WITH_KEY = Target("https://models.example", "qwen3", 32_768, "fp_1_secret")
CODEX_ALONE: dict[str, Any] = {
    "model": "qwen3",
    "model_provider": "fencepost",
    "model_context_window": 32_768,
    "model_providers": {
        "fencepost": {
            "name": "Fencepost",
            "base_url": "http://127.0.0.1:8000/v1",
            "wire_api": "responses",
            "env_key": "FENCEPOST_API_KEY",
            "supports_websockets": True,
        }
    },
}


def test_codex_from_nothing() -> None:
    assert tomllib.loads(CODEX.merge("", TARGET)) == CODEX_ALONE
    assert CODEX.variables(TARGET) == {"FENCEPOST_API_KEY": "none"}
    assert CODEX.variables(WITH_KEY) == {"FENCEPOST_API_KEY": "fp_1_secret"}


def test_codex_keeps_settings_comments_and_other_providers() -> None:
    text = """\
# Mine.
model = "other"  # for now

[model_providers.other]
name = "Other"

[analytics]
enabled = false
"""
    after = CODEX.merge(text, TARGET)
    assert "# Mine.\n" in after
    assert "# for now\n" in after
    providers = {**CODEX_ALONE["model_providers"], "other": {"name": "Other"}}
    assert tomllib.loads(after) == {
        **CODEX_ALONE,
        "model_providers": providers,
        "analytics": {"enabled": False},
    }


def test_codex_settings_stay_at_the_top_of_a_file_that_has_tables_only() -> None:
    assert tomllib.loads(CODEX.merge("[analytics]\nenabled = false\n", TARGET)) == {
        **CODEX_ALONE,
        "analytics": {"enabled": False},
    }


def test_claude_from_nothing() -> None:
    environment = {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8000",
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_OPUS_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_SONNET_MODEL": "qwen3",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "qwen3",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "32768",
    }
    assert json.loads(CLAUDE.merge("", TARGET)) == {"env": environment}
    assert CLAUDE.variables_alone(TARGET) == environment
    assert CLAUDE.variables(TARGET) == {}


def test_claude_keeps_other_settings_and_variables() -> None:
    text = '{"permissions": {"allow": ["Bash"]}, "env": {"EDITOR": "vi", "ANTHROPIC_MODEL": "other"}, "sprache": "é"}'
    after = CLAUDE.merge(text, WITH_KEY)
    settings = json.loads(after)
    assert settings["permissions"] == {"allow": ["Bash"]}
    assert settings["env"]["EDITOR"] == "vi"
    assert settings["env"]["ANTHROPIC_MODEL"] == "qwen3"
    assert settings["env"]["ANTHROPIC_AUTH_TOKEN"] == "fp_1_secret"
    assert '"é"' in after


def test_opencode_from_nothing() -> None:
    assert json.loads(OPENCODE.merge("", WITH_KEY)) == {
        "$schema": "https://opencode.ai/config.json",
        "model": "fencepost/qwen3",
        "small_model": "fencepost/qwen3",
        "provider": {
            "fencepost": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Fencepost",
                "options": {"baseURL": "https://models.example/v1", "apiKey": "{env:FENCEPOST_API_KEY}"},
                "models": {
                    "qwen3": {
                        "name": "qwen3",
                        "limit": {"context": 32_768, "output": 8_192},
                        "tool_call": True,
                        "reasoning": True,
                    }
                },
            }
        },
    }


def test_opencode_keeps_other_providers_and_other_models() -> None:
    before = OPENCODE.merge('{"theme": "dark", "provider": {"other": {"name": "Other"}}}', WITH_KEY)
    after = json.loads(OPENCODE.merge(before, Target("https://models.example", "glm", 8_192, None)))
    assert after["theme"] == "dark"
    assert after["model"] == "fencepost/glm"
    assert after["provider"]["other"] == {"name": "Other"}
    assert list(after["provider"]["fencepost"]["models"]) == ["qwen3", "glm"]


@pytest.mark.parametrize("client", [CODEX, CLAUDE, OPENCODE], ids=lambda client: client.name)
def test_a_second_time_changes_nothing(client: Client) -> None:
    once = client.merge("", TARGET)
    assert client.merge(once, TARGET) == once


@pytest.mark.parametrize(
    ("client", "text", "complaint"),
    [
        (CODEX, "model = ", "line 1"),
        (CODEX, 'model_providers = "none"', "model_providers in it is no table"),
        (CLAUDE, "{'env': {}}", "double quotes"),
        (CLAUDE, '{"env": []}', '"env" in it is no object'),
        (OPENCODE, "[]", "no JSON object"),
        (OPENCODE, "// mine\n{}", "line 1"),
    ],
)
def test_what_cannot_be_merged_is_refused(client: Client, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        client.merge(text, TARGET)


def test_the_place_is_where_the_agent_looks() -> None:
    home = Path("/home/me")
    assert CODEX.path(home, {}) == Path("/home/me/.codex/config.toml")
    assert CODEX.path(home, {"CODEX_HOME": "/etc/codex"}) == Path("/etc/codex/config.toml")
    assert CLAUDE.path(home, {}) == Path("/home/me/.claude/settings.json")
    assert CLAUDE.path(home, {"CLAUDE_CONFIG_DIR": "/c"}) == Path("/c/settings.json")
    assert OPENCODE.path(home, {"XDG_CONFIG_HOME": ""}) == Path("/home/me/.config/opencode/opencode.json")
    assert OPENCODE.path(home, {"XDG_CONFIG_HOME": "/x"}) == Path("/x/opencode/opencode.json")
