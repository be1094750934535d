"""``fencepost connect`` against a gateway: what it prints, what it writes, and what stops it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.__main__ import main
from tests.contract.gateway_server import gateway_at
from tests.contract.scripted_tokenizer import MODEL, ScriptedTokenizer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME", "FENCEPOST_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with ScriptedTokenizer().serving() as tokenizer, gateway_at(tokenizer.address) as url:
        yield url


@pytest.fixture
def key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["key", "create", "--tenant", "a", "--file", str(tmp_path / "keys.json")]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
async def guarded_url(tmp_path: Path, key: str) -> AsyncIterator[str]:
    async with (
        ScriptedTokenizer().serving() as tokenizer,
        gateway_at(tokenizer.address, keys_file=tmp_path / "keys.json") as url,
    ):
        yield url


async def connect(*argv: str) -> int:
    return await asyncio.to_thread(main, ["connect", *argv])


async def test_what_codex_needs(home: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await connect("codex", "--url", f"{url}/v1/") == 0
    said = capsys.readouterr()
    assert (
        said.out
        == f"""\
In {home}/.codex/config.toml (--write puts it there):

model = "{MODEL}"
model_provider = "fencepost"
model_context_window = 8192

[model_providers.fencepost]
name = "Fencepost"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "FENCEPOST_API_KEY"
supports_websockets = true

Then:

export FENCEPOST_API_KEY=none
codex
"""
    )
    assert said.err == (
        f"Warning: {MODEL} holds 8,192 tokens, and the first request of Codex has about 9,200. "
        "Serve a model with a longer context: fencepost up --model …\n"
    )
    assert not (home / ".codex").exists()


async def test_claude_code_may_do_without_a_file(home: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await connect("claude", "--url", url, "--model", "claude-opus-5") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"For one shell:\n\nexport ANTHROPIC_BASE_URL={url}\n")
    assert f"export ANTHROPIC_MODEL={MODEL}\n" in out
    assert f"Or for good, in {home}/.claude/settings.json (--write puts it there):\n" in out
    assert out.endswith("Then:\n\nclaude\n")


async def test_a_key_is_written_where_it_must_be_and_never_shown(
    home: Path, guarded_url: str, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in ("codex", "claude", "opencode"):
        for flags in ((), ("--write",)):
            assert await connect(client, "--url", guarded_url, "--key", key, *flags) == 0
            said = capsys.readouterr()
            assert key not in said.out + said.err
            assert "YOUR_KEY" in said.out or (client, flags) == ("claude", ("--write",))
    settings = home / ".claude/settings.json"
    assert json.loads(settings.read_text())["env"]["ANTHROPIC_AUTH_TOKEN"] == key
    assert settings.stat().st_mode & 0o777 == 0o600
    assert key not in (home / ".codex/config.toml").read_text()
    assert key not in (home / ".config/opencode/opencode.json").read_text()


async def test_the_key_may_come_from_the_environment(
    home: Path, guarded_url: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_API_KEY", key)
    assert await connect("codex", "--url", guarded_url) == 0


async def test_writing_keeps_what_is_there_and_the_file_as_it_was_at_first(
    home: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = home / "dotfiles.json"
    target.write_text('{"theme": "dark"}')
    settings = home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.symlink_to(target)
    assert await connect("claude", "--url", url, "--write") == 0
    assert capsys.readouterr().out == (
        f"{target} is written; as it was before: {target}.before-fencepost\n\nThen:\n\nclaude\n"
    )
    assert settings.is_symlink()
    written = json.loads(settings.read_text())
    assert (written["theme"], written["env"]["ANTHROPIC_MODEL"]) == ("dark", MODEL)
    target.write_text(json.dumps({**written, "theme": "light", "env": {}}))
    assert await connect("claude", "--url", url, "--write") == 0
    assert json.loads(settings.read_text()) == {**written, "theme": "light"}
    assert (home / "dotfiles.json.before-fencepost").read_text() == '{"theme": "dark"}'
    assert set(os.listdir(home)) == {".claude", "dotfiles.json", "dotfiles.json.before-fencepost"}


async def test_a_file_that_cannot_be_read_is_left_alone(
    home: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = home / ".codex/config.toml"
    config.parent.mkdir()
    config.write_bytes(b"model = \n")
    assert await connect("codex", "--url", url, "--write") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"fencepost connect codex: {config} is left as it is: ")
    assert error.count("\n") == 1
    assert config.read_bytes() == b"model = \n"
    assert list(config.parent.iterdir()) == [config]


async def test_an_unknown_model(home: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await connect("codex", "--url", url, "--model", "llama") == 1
    assert (
        capsys.readouterr().err
        == f"fencepost connect codex: {url} serves no model named llama; it serves {MODEL}, org/other\n"
    )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [((), "wants an API key; give it with --key"), (("--key", "fp_wrong"), "does not take this API key")],
)
async def test_a_key_is_asked_for(
    home: Path, guarded_url: str, flags: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await connect("opencode", "--url", guarded_url, *flags) == 1
    assert capsys.readouterr().err == f"fencepost connect opencode: {guarded_url} {complaint}\n"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9 does not answer: [Errno 111] Connection refused"),
        ("127.0.0.1:8000", "127.0.0.1:8000 is not an http:// or https:// address"),
        ("http://127.0.0.1:port", "http://127.0.0.1:port does not answer: nonnumeric port: 'port'"),
    ],
)
async def test_nobody_there(home: Path, wrong: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await connect("claude", "--url", wrong) == 1
    assert capsys.readouterr().err == f"fencepost connect claude: {complaint}\n"


async def test_somebody_else_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"data": [{"id": "m1"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await connect("codex", "--url", url) == 1
    expected = f"fencepost connect codex: {url} is no Fencepost gateway: it lists no models as one does\n"
    assert capsys.readouterr().err == expected
