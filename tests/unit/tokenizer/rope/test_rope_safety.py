"""What the token cache does when something is wrong, when it is off, and when many use it at once."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client import REGISTRY
from tokenizers import Tokenizer

from services.tokenizer.rope.chunks import ChunkCache
from services.tokenizer.rope.encoded import EncodePath
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText, TokenIds
from tests.unit.tokenizer.trained_tokenizers import trained

TEXT = "<|im_start|>user\nthe quick brown fox jumps over the lazy dog<|im_end|>\n" * 20
EAGER = RopeLimits(min_chars=1, chunk_chars=16)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def fail(*_: object) -> list[TokenIds | None]:
    raise RuntimeError("broken")


def give_wrong_ids(_: ChunkCache, keys: list[bytes]) -> list[TokenIds | None]:
    return [np.zeros(3, np.int32) for _ in keys]


def test_a_failing_cache_is_switched_off_and_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = trained("llama3")
    rope = RopeEncoder(tokenizer, EAGER)
    rope.encode(PromptText(TEXT), "k")
    monkeypatch.setattr(ChunkCache, "get", fail)
    failures = REGISTRY.get_sample_value("fencepost_tokenizer_cache_failures_total") or 0
    encoded = rope.encode(PromptText(TEXT + "more"), "k")
    assert encoded.ids.tolist() == ids_of(tokenizer, TEXT + "more")
    assert encoded.path is EncodePath.FULL
    assert rope.mode == "off"
    assert REGISTRY.get_sample_value("fencepost_tokenizer_cache_failures_total") == failures + 1
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "RuntimeError('broken')" in record.getMessage()

    monkeypatch.undo()
    assert rope.encode(PromptText(TEXT), "k").path is EncodePath.FULL
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize("limits", [EAGER, RopeLimits(), RopeLimits(enabled=False)])
def test_a_lone_surrogate_is_the_callers_fault(limits: RopeLimits) -> None:
    rope = RopeEncoder(trained("llama3"), limits)
    mode = rope.mode
    with pytest.raises(UnicodeEncodeError):
        rope.encode(PromptText("x\ud800 y"), "k")
    with pytest.raises(UnicodeEncodeError):
        rope.encode_full(PromptText("x\ud800 y"))
    assert rope.mode == mode


def test_verification_returns_the_right_ids_and_switches_a_wrong_cache_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = trained("llama3")
    rope = RopeEncoder(tokenizer, RopeLimits(min_chars=1, verify_rate=1.0))
    assert rope.encode(PromptText(TEXT), "k").ids.tolist() == ids_of(tokenizer, TEXT)
    assert rope.mode == "rope"
    monkeypatch.setattr(ChunkCache, "get", give_wrong_ids)
    encoded = rope.encode(PromptText(TEXT + "more"), "k")
    assert encoded.ids.tolist() == ids_of(tokenizer, TEXT + "more")
    assert encoded.path is EncodePath.FULL
    assert rope.mode == "off"
    assert rope.statistics.mismatches == 1
    assert "other ids" in caplog.text


def test_nothing_is_verified_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = RopeEncoder(trained("llama3"), EAGER)
    monkeypatch.setattr(ChunkCache, "get", give_wrong_ids)
    rope.encode(PromptText(TEXT), "k")
    assert (rope.mode, rope.statistics.mismatches) == ("rope", 0)


def test_short_prompts_are_not_remembered() -> None:
    rope = RopeEncoder(trained("llama3"), RopeLimits(min_chars=len(TEXT)))
    for _ in range(2):
        assert rope.encode(PromptText(TEXT[:-1]), "k").path is EncodePath.FULL
    assert rope.statistics.requests == 0
    rope.encode(PromptText(TEXT), "k")
    assert rope.encode(PromptText(TEXT), "k").path is EncodePath.DELTA


def test_a_cache_that_is_off_encodes_whole() -> None:
    tokenizer = trained("qwen3")
    rope = RopeEncoder(tokenizer, RopeLimits(enabled=False))
    for _ in range(2):
        encoded = rope.encode(PromptText(TEXT * 4), "k")
        assert (encoded.path, encoded.encoded_tokens) == (EncodePath.FULL, len(encoded.ids))
        assert encoded.ids.tolist() == ids_of(tokenizer, TEXT * 4)
    assert rope.is_certified


def test_no_anchor_key_shares_chunks_only() -> None:
    rope = RopeEncoder(trained("llama3"), EAGER)
    first = rope.encode(PromptText(TEXT), None)
    second = rope.encode(PromptText(TEXT), None)
    assert first.reused_tokens < len(first.ids)
    # Added tokens are made anew; the text between them is found.
    assert second.encoded_tokens == 40


def test_conversations_do_not_mix() -> None:
    tokenizer = trained("llama3")
    rope = RopeEncoder(tokenizer, EAGER)
    rope.encode(PromptText(TEXT), "a")
    rope.encode(PromptText("something else " * 9, exact=(ExactSpan(0, 9, np.array([9], np.int32)),)), "b")
    for key in ("a", "b", "c"):
        assert rope.encode(PromptText(TEXT + "!"), key).ids.tolist() == ids_of(tokenizer, TEXT + "!")


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_many_threads(family: str) -> None:
    tokenizer = trained(family)
    rope = RopeEncoder(tokenizer, RopeLimits(min_chars=1, chunk_chars=16, chunk_bytes=4000, entries=3))
    prompts = [TEXT[: 40 * i] + f"thread {i} é😀" for i in range(1, 24)]
    expected = [ids_of(tokenizer, text) for text in prompts]

    def work(number: int) -> bool:
        order = [(number * 7 + i * 5) % len(prompts) for i in range(60)]
        return all(rope.encode(PromptText(prompts[i]), f"{i % 4}").ids.tolist() == expected[i] for i in order)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
    assert rope.mode == "rope"


def test_every_thousandth_request_writes_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rope = RopeEncoder(trained("llama3"), EAGER)
    for _ in range(1999):
        rope.encode(PromptText("the quick fox"), "k")
    lines = [r.getMessage() for r in caplog.records if "requests" in r.getMessage() and "hits" in r.getMessage()]
    assert len(lines) == 1
    assert "1000 requests, 99.9% hits" in lines[0]
    assert "holds 1 prompts (13 characters)" in lines[0]
