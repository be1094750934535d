"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from gateway_server import gateway_at
from scripted_tokenizer import ScriptedTokenizer

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files (with tests/contract as argument)"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compares bytes with a golden file, or writes it with --update-golden."""

    def check(name: str, actual: bytes) -> None:
        path = GOLDEN / name
        # Unknown when pytest was started elsewhere than here.
        if request.config.getoption("--update-golden", default=False):
            path.write_bytes(actual)
        assert actual == path.read_bytes()

    return check


@pytest.fixture
async def tokenizer() -> AsyncIterator[ScriptedTokenizer]:
    async with ScriptedTokenizer().serving() as scripted:
        yield scripted


@pytest.fixture
async def url(tokenizer: ScriptedTokenizer) -> AsyncIterator[str]:
    async with gateway_at(tokenizer.address) as found:
        yield found


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=10) as found:
        yield found
