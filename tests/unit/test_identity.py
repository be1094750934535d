"""Page keys, namespaces and fingerprints; the golden page keys are among the contract tests."""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.identity import (
    PAGE_TOKENS,
    digest_fields,
    page_key_secret,
    page_keys,
    state_namespace,
    tokenizer_fingerprint,
    weights_fingerprint,
)

SECRET = page_key_secret("scope", "fingerprint")
PAGE_BYTES = 4 * PAGE_TOKENS


def ids(*token_ids: int) -> bytes:
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def test_only_whole_pages_have_keys() -> None:
    tokens = ids(*range(3 * PAGE_TOKENS))
    keys = page_keys(SECRET, tokens)
    assert [len(key) for key in keys] == [16, 16, 16]
    for num_tokens in (0, 1, PAGE_TOKENS - 1, PAGE_TOKENS, PAGE_TOKENS + 1, 3 * PAGE_TOKENS - 1):
        assert page_keys(SECRET, memoryview(tokens)[: 4 * num_tokens]) == keys[: num_tokens // PAGE_TOKENS]


@given(changed=st.integers(0, 4 * PAGE_TOKENS - 1))
def test_key_stands_for_its_page_and_all_before(changed: int) -> None:
    tokens = list(range(4 * PAGE_TOKENS))
    before = page_keys(SECRET, ids(*tokens))
    tokens[changed] += 1
    after = page_keys(SECRET, ids(*tokens))
    assert [a == b for a, b in zip(before, after, strict=True)] == [page < changed // PAGE_TOKENS for page in range(4)]


@given(split=st.integers(0, 4), positions=st.lists(st.integers(0, 4 * PAGE_TOKENS - 1), max_size=5))
def test_chain_continues_from_a_parent(split: int, positions: list[int]) -> None:
    tokens = ids(*range(4 * PAGE_TOKENS))
    extras = [(position, b"image %d" % position) for position in sorted(positions)]
    whole = page_keys(SECRET, tokens, extras)
    first = split * PAGE_TOKENS
    head = page_keys(SECRET, tokens[: split * PAGE_BYTES], extras)
    rest = [(position - first, content) for position, content in extras if position >= first]
    options = {"parent": head[-1]} if head else {}
    assert head + page_keys(SECRET, tokens[split * PAGE_BYTES :], rest, **options) == whole


def test_extra_counts_in_its_page_only_with_position_and_content() -> None:
    tokens = ids(*[7] * (3 * PAGE_TOKENS))
    plain = page_keys(SECRET, tokens)
    last_of_first_page, first_of_second_page = PAGE_TOKENS - 1, PAGE_TOKENS
    assert page_keys(SECRET, tokens, [(last_of_first_page, b"x")])[0] != plain[0]
    second = page_keys(SECRET, tokens, [(first_of_second_page, b"x")])
    assert second[0] == plain[0]
    assert second[1] != plain[1]
    assert second[2] != plain[2], "chained"
    variants = ([(1, b"x")], [(2, b"x")], [(1, b"y")], [(1, b"x"), (2, b"y")], [(1, b"xy")], [(1, b"")], [])
    keys = {page_keys(SECRET, tokens, extras)[0] for extras in variants}
    assert len(keys) == len(variants)
    assert page_keys(SECRET, tokens, [(3 * PAGE_TOKENS, b"beyond")]) == plain


def test_keys_differ_between_scopes_and_tokenizers() -> None:
    tokens = ids(*range(PAGE_TOKENS))
    pairs = [("scope", "fingerprint"), ("other", "fingerprint"), ("scope", "other"), ("scopef", "ingerprint"), ("", "")]
    assert len({page_keys(page_key_secret(*pair), tokens)[0] for pair in pairs}) == len(pairs)


@given(st.lists(st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3), min_size=2, max_size=2))
def test_digests_are_equal_for_equal_fields_only(fields: list[list[tuple[str, bytes]]]) -> None:
    one, two = fields
    assert (digest_fields(*one) == digest_fields(*two)) == (one == two)


NAMESPACE: Mapping[str, str | int] = {
    "cache_scope": "scope",
    "model": "llama",
    "weights_fingerprint": "weights",
    "weight_format": "float32",
    "kv_dtype": "bfloat16",
    "page_format": 1,
    "numerics": "cpu-1",
    "adapter": "adapter",
}


def namespace(**changes: str | int) -> bytes:
    return state_namespace(**{**NAMESPACE, **changes})  # pyright: ignore[reportArgumentType]


def test_namespaces_differ_in_each_field() -> None:
    changed = [namespace(**{name: 2 if isinstance(value, int) else value + "x"}) for name, value in NAMESPACE.items()]
    found = {namespace(), *changed}
    assert len(found) == 1 + len(NAMESPACE)
    assert {len(value) for value in found} == {32}
    assert namespace() == namespace()
    layouts = {value[:16] for value in found}
    assert len(layouts) == len(NAMESPACE), "all but the scope make the layout"
    assert namespace(cache_scope="other")[:16] == namespace()[:16]


def test_neighbouring_fields_of_a_namespace_do_not_run_together() -> None:
    assert namespace(cache_scope="a", model="bc") != namespace(cache_scope="ab", model="c")
    assert namespace(weight_format="x", kv_dtype="") != namespace(weight_format="", kv_dtype="x")


def write_weights(path: Path, tensors: Mapping[str, bytes], metadata: Mapping[str, str] | None = None) -> None:
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, data in tensors.items():
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(tensors.values()))


TENSORS = {f"layers.{i}.weight": bytes([i]) * 50_000 for i in range(200)} | {"norm": b"n" * 64, "empty": b""}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"rope_theta": 10000.0}')
    (directory / "tokenizer.json").write_text('{"model": {}}')
    write_weights(directory / "model.safetensors", TENSORS)
    return directory


def test_fingerprints_follow_content_and_not_place(model_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    weights, tokenizer = weights_fingerprint(model_dir), tokenizer_fingerprint(model_dir)
    assert len(weights) == len(tokenizer) == 32
    assert (weights_fingerprint(copy), tokenizer_fingerprint(copy)) == (weights, tokenizer)
    (copy / "tokenizer.json").write_text('{"model":  {}}')
    assert (weights_fingerprint(copy), tokenizer_fingerprint(copy) == tokenizer) == (weights, False)
    (copy / "config.json").write_text('{"rope_theta": 20000.0}')
    assert weights_fingerprint(copy) != weights


@pytest.mark.parametrize("name", ["layers.0.weight", "layers.151.weight", "norm"])
def test_fine_tune_of_one_tensor_has_another_weights_fingerprint(model_dir: Path, name: str) -> None:
    original = weights_fingerprint(model_dir)
    tuned = bytes(byte ^ 1 for byte in TENSORS[name])
    write_weights(model_dir / "model.safetensors", {**TENSORS, name: tuned})
    assert weights_fingerprint(model_dir) != original


@pytest.mark.parametrize("position", [0, 24_999, 49_999])
def test_start_middle_and_end_of_a_tensor_are_seen(model_dir: Path, position: int) -> None:
    original = weights_fingerprint(model_dir)
    tuned = bytearray(TENSORS["layers.7.weight"])
    tuned[position] ^= 1
    write_weights(model_dir / "model.safetensors", {**TENSORS, "layers.7.weight": bytes(tuned)})
    assert weights_fingerprint(model_dir) != original


def test_names_shards_and_metadata_are_part_of_the_weights(model_dir: Path) -> None:
    seen = {weights_fingerprint(model_dir)}
    path = model_dir / "model.safetensors"
    write_weights(path, TENSORS, {"format": "pt"})
    seen.add(weights_fingerprint(model_dir))
    write_weights(path, {name.replace(".0.", ".z."): data for name, data in TENSORS.items()})
    seen.add(weights_fingerprint(model_dir))
    write_weights(model_dir / "more.safetensors", {"head": b"h"})
    seen.add(weights_fingerprint(model_dir))
    path.rename(model_dir / "renamed.safetensors")
    seen.add(weights_fingerprint(model_dir))
    assert len(seen) == 5


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_missing_file_is_named(model_dir: Path, name: str) -> None:
    (model_dir / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        (tokenizer_fingerprint if name == "tokenizer.json" else weights_fingerprint)(model_dir)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"\xff{}",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 33) + b'{"a": {"data_offsets": [0, 1000]}}'[:33] + b" " * 2000,
        struct.pack("<Q", 34) + b'{"a": {"data_offsets": [0, 1000]}}',
        struct.pack("<Q", 31) + b'{"a": {"data_offsets": [3, 1]}}',
    ],
)
def test_file_that_is_no_safetensors_file_is_named(model_dir: Path, content: bytes) -> None:
    (model_dir / "model.safetensors").write_bytes(content)
    with pytest.raises(OSError, match=r"not a whole safetensors file.*model\.safetensors"):
        weights_fingerprint(model_dir)
