"""Other names for the served models."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services import replicas
from services.gateway.errors import ModelNotFoundError
from services.gateway.model_aliases import ModelAlias, parse_aliases
from services.gateway.served_models import ServedModels
from services.gateway.upstream import Tokenizer, Tokenizers
from tests.contract.scripted_tokenizer import ScriptedTokenizer

MODELS = (
    pb.Model(id="gpt-oss-20b", aliases=["oss"], context_tokens=8192),
    pb.Model(id="qwen", aliases=["default"], context_tokens=4096),
)


async def named(aliases: str, name: str, models: Sequence[pb.Model] = MODELS) -> str:
    async with (
        ScriptedTokenizer(models=list(models)).serving() as served,
        replicas.connect((served.address,), Tokenizer, grace_s=1) as found,
    ):
        return (await ServedModels(Tokenizers(found, timeout_s=5), parse_aliases(aliases)).named(name)).id


def test_aliases_are_patterns_with_or_without_a_model() -> None:
    assert parse_aliases(" claude-*, gpt-* = qwen ,") == (ModelAlias("claude-*", None), ModelAlias("gpt-*", "qwen"))
    assert parse_aliases("") == ()
    for wrong in ("=qwen", "gpt-*="):
        with pytest.raises(ValueError, match="PATTERN"):
            parse_aliases(wrong)


@pytest.mark.parametrize(
    ("aliases", "name", "model"),
    [
        ("claude-*", "claude-sonnet", "gpt-oss-20b"),
        ("claude-*=qwen", "claude-sonnet", "qwen"),
        ("claude-*=default", "claude-sonnet", "qwen"),
        ("*haiku*=qwen,claude-*", "claude-haiku", "qwen"),
        ("*haiku*=qwen,claude-*", "claude-opus", "gpt-oss-20b"),
        ("gpt-*=qwen", "gpt-5", "qwen"),
        ("gpt-*=qwen", "gpt-oss-20b", "gpt-oss-20b"),
        ("", "oss", "gpt-oss-20b"),
    ],
)
async def test_a_served_name_wins_then_the_first_pattern_that_fits(aliases: str, name: str, model: str) -> None:
    assert await named(aliases, name) == model


@pytest.mark.parametrize(
    ("aliases", "name"), [("", "claude-1"), ("claude-*", "Claude-1"), ("claude-*=gone", "claude-1")]
)
async def test_an_unknown_name_is_told_what_is_served(aliases: str, name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"'{name}' does not exist; served: gpt-oss-20b, qwen") as caught:
        await named(aliases, name)
    assert (caught.value.http_status, caught.value.param) == (404, "model")
