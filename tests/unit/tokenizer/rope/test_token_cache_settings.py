"""Settings of the token cache, under our names and under the ones that operators bring along."""

import pytest

from services import settings
from services.settings import SettingsError
from services.tokenizer.config import TokenizerSettings

KNOWN_ELSEWHERE = ("entries", "max_chars", "min_chars")


def load(*argv: str, **environ: str) -> TokenizerSettings:
    return settings.load(TokenizerSettings, "tokenizer", ["--model", "/model", *argv], environ)


def test_defaults() -> None:
    loaded = load()
    assert loaded.prefix_token_cache
    assert loaded.prefix_token_cache_entries == 512
    assert loaded.prefix_token_cache_max_chars == 67_108_864
    assert loaded.prefix_token_cache_min_chars == 4096
    assert (loaded.prefix_token_cache_overlap_tokens, loaded.prefix_token_cache_resync_tokens) == (64, 32)
    assert loaded.prefix_token_cache_verify_rate == 0


@pytest.mark.parametrize("name", KNOWN_ELSEWHERE)
def test_an_alias_sets_what_our_own_names_do_not(name: str) -> None:
    field = f"prefix_token_cache_{name}"
    alias, own = f"TLLM_PREFIX_TOKEN_CACHE_{name.upper()}", f"FENCEPOST_TOKENIZER_PREFIX_TOKEN_CACHE_{name.upper()}"
    flag = "--" + field.replace("_", "-")
    assert getattr(load(**{alias: "7"}), field) == 7
    assert getattr(load(**{alias: "7", own: "8"}), field) == 8
    assert getattr(load(flag, "9", **{alias: "7"}), field) == 9


@pytest.mark.parametrize("name", KNOWN_ELSEWHERE)
@pytest.mark.parametrize("value", ["0", "-1", "many", "", "1.5"])
@pytest.mark.parametrize("prefix", ["TLLM", "FENCEPOST_TOKENIZER"])
def test_a_malformed_value_stops_the_start_and_is_named(name: str, value: str, prefix: str) -> None:
    variable = f"{prefix}_PREFIX_TOKEN_CACHE_{name.upper()}"
    with pytest.raises(SettingsError, match=f"^{variable}: "):
        load(**{variable: value})


@pytest.mark.parametrize("value", ["1.1", "-0.1", "nan", "often"])
def test_the_share_of_verified_prompts_is_a_share(value: str) -> None:
    with pytest.raises(SettingsError, match="--prefix-token-cache-verify-rate"):
        load("--prefix-token-cache-verify-rate", value)
