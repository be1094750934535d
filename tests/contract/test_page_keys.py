"""Page keys: golden vectors, a second implementation, and that no service has one of its own.

The vectors are for every party that computes keys, in whatever language.
"""

import ast
import json
import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.identity import PAGE_TOKENS, page_key_secret, page_keys

ROOT = Path(__file__).parents[2]
VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "golden" / "page_keys.json").read_bytes())


def straightforward(scope: str, fingerprint: str, ids: list[int], extras: list[tuple[int, bytes]]) -> list[bytes]:
    """The definition, a page at a time, without the shared code.

    secret = BLAKE2b-256 over tag and value of both fields, each with its length as 64 bits before it;
    key = BLAKE2b-128, keyed by it, over parent key, ids, and place in the page, length and digest of each extra.
    """
    fields = b""
    for text in ("scope", scope, "tokenizer", fingerprint):
        data = text.encode()
        fields += len(data).to_bytes(8, "little") + data
    secret = blake2b(fields, digest_size=32).digest()
    keys = [bytes(16)]
    for page in range(len(ids) // 256):
        content = keys[-1]
        for token_id in ids[page * 256 : page * 256 + 256]:
            content += token_id.to_bytes(4, "little", signed=True)
        for position, digest in extras:
            if position // 256 == page:
                content += (position % 256).to_bytes(4, "little") + len(digest).to_bytes(4, "little") + digest
        keys.append(blake2b(content, key=secret, digest_size=16).digest())
    return keys[1:]


def shared(scope: str, fingerprint: str, ids: list[int], extras: list[tuple[int, bytes]]) -> list[bytes]:
    return page_keys(page_key_secret(scope, fingerprint), struct.pack(f"<{len(ids)}i", *ids), extras)


def inputs(vector: dict[str, Any]) -> tuple[str, str, list[int], list[tuple[int, bytes]]]:
    extras = [(extra["position"], bytes.fromhex(extra["digest"])) for extra in vector["extras"]]
    return vector["scope"], vector["fingerprint"], vector["ids"], extras


def test_page_keys_are_golden(golden: Callable[[str, bytes], None]) -> None:
    computed = [{**vector, "keys": [key.hex() for key in shared(*inputs(vector))]} for vector in VECTORS]
    lines = ",\n".join(json.dumps(vector, separators=(",", ":")) for vector in computed)
    golden("page_keys.json", f"[\n{lines}\n]\n".encode())


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_golden_page_keys_follow_the_definition(vector: dict[str, Any]) -> None:
    assert [key.hex() for key in straightforward(*inputs(vector))] == vector["keys"]
    assert len(vector["keys"]) == len(vector["ids"]) // PAGE_TOKENS


def test_golden_vectors_cover_what_makes_a_key() -> None:
    keys = [key for vector in VECTORS for key in vector["keys"]]
    assert len(set(keys)) == len(keys)
    assert any(extra["position"] >= PAGE_TOKENS for vector in VECTORS for extra in vector["extras"])
    assert any(len(vector["ids"]) % PAGE_TOKENS for vector in VECTORS)


TOKEN_IDS = st.integers(0, 3).flatmap(
    lambda pages: st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4).map(lambda ids: ids * pages * 65)
)


@given(
    scope=st.text(max_size=5),
    fingerprint=st.text(max_size=5),
    ids=TOKEN_IDS,
    extras=st.lists(st.tuples(st.integers(0, 800), st.binary(max_size=5)), max_size=4),
)
def test_shared_code_follows_the_definition(
    scope: str, fingerprint: str, ids: list[int], extras: list[tuple[int, bytes]]
) -> None:
    extras.sort(key=lambda extra: extra[0])
    assert shared(scope, fingerprint, ids, extras) == straightforward(scope, fingerprint, ids, extras)


HASHES_OF_THEIR_OWN = {"services.tokenizer.rope.chunks", "services.tokenizer.history.record"}
"""Keyed for a cache in memory and for a chain of turns: no other service computes these."""
SHARED_NAMES = {"page_key_secret", "page_keys", "state_namespace", "tokenizer_fingerprint", "weights_fingerprint"}


def service_trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "services").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name != "services.identity":
            yield name, ast.parse(path.read_text(), name)


def used_from_identity(tree: ast.Module) -> set[str]:
    """Names of services.identity that a module imports, or reaches through the module and calls."""
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "services.identity"
        for alias in node.names
    }
    reached = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "identity"
    }
    return imported | reached


def test_tokenizer_and_engine_compute_keys_with_the_shared_code() -> None:
    used: dict[str, set[str]] = {}
    for name, tree in service_trees():
        used.setdefault(name.split(".")[1], set()).update(used_from_identity(tree) & SHARED_NAMES)
    assert used["tokenizer"] == {"page_key_secret", "page_keys", "tokenizer_fingerprint"}
    assert used["engine"] == SHARED_NAMES


def test_no_service_has_keys_or_fingerprints_of_its_own() -> None:
    for name, tree in service_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.name not in SHARED_NAMES, name
            hashes = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("blake2b")
            if isinstance(node, ast.Call) and hashes and name not in HASHES_OF_THEIR_OWN:
                assert not any(keyword.arg == "key" for keyword in node.keywords), f"{name} hashes with a key"
