"""Spelling token ids from tokenizer.json, checked against the tokenizers library."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from services.vocabulary import VocabularyError, load_vocabulary

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level_tokenizer() -> Tokenizer:
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "w"), ("Ã", "©")]
    tokens = [*ALPHABET, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool call>", special=False), AddedToken("日本", special=False)])
    return tokenizer


BYTE_LEVEL = byte_level_tokenizer()


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("byte_level")
    BYTE_LEVEL.save(str(directory / "tokenizer.json"))
    return directory


def write(directory: Path, **document: Any) -> Path:
    (directory / "tokenizer.json").write_text(json.dumps(document))
    return directory


@given(text=st.text(alphabet=st.characters(codec="utf-8")) | st.sampled_from(["hello world é", "日本<tool call>"]))
def test_byte_level_spelling_is_the_text(byte_level: Path, text: str) -> None:
    vocabulary = load_vocabulary(byte_level)
    ids = BYTE_LEVEL.encode(text).ids
    assert b"".join(map(vocabulary.spell, ids)) == text.encode()


def test_byte_level_covers_every_byte(byte_level: Path) -> None:
    vocabulary = load_vocabulary(byte_level)
    assert sorted(vocabulary.spell(i) for i in range(256)) == [bytes([byte]) for byte in range(256)]


def test_added_tokens_are_spelt_plainly_and_only_special_ones_are_special(byte_level: Path) -> None:
    vocabulary = load_vocabulary(byte_level)
    for text in ("<|end|>", "<tool call>", "日本"):
        token_id = BYTE_LEVEL.token_to_id(text)
        assert token_id is not None
        assert vocabulary.spell(token_id) == text.encode()
        assert (token_id in vocabulary.special_ids) == (text == "<|end|>")
    assert len(vocabulary.special_ids) == 1


def test_undefined_and_padded_ids_have_no_bytes(tmp_path: Path) -> None:
    decoder = {"type": "ByteLevel"}
    added = [{"id": 5, "content": "<|end|>", "special": True}]
    directory = write(tmp_path, model={"vocab": {"a": 0, "b": 2}}, decoder=decoder, added_tokens=added)
    vocabulary = load_vocabulary(directory)
    assert [vocabulary.spell(i) for i in (0, 1, 2, 3, 5, 6, 10**9)] == [b"a", b"", b"b", b"", b"<|end|>", b"", b""]


def test_byte_level_vocabulary_may_hold_plain_spellings(tmp_path: Path) -> None:
    directory = write(tmp_path, model={"vocab": {"日本": 0, "two words": 1}}, decoder={"type": "ByteLevel"})
    vocabulary = load_vocabulary(directory)
    assert [vocabulary.spell(0), vocabulary.spell(1)] == ["日本".encode(), b"two words"]


def test_byte_fallback_spelling(tmp_path: Path) -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    vocab = {"<s>": 0, "<0x0A>": 1, "<0xFF>": 2, "▁the": 3, "é": 4, "<0xff>": 5, "<0x0A>x": 6}
    added = [{"id": 0, "content": "<s>", "special": True}]
    vocabulary = load_vocabulary(write(tmp_path, model={"vocab": vocab}, decoder=decoder, added_tokens=added))
    expected = [b"<s>", b"\n", b"\xff", b" the", "é".encode(), b"<0xff>", b"<0x0A>x"]
    assert list(vocabulary.token_bytes) == expected
    assert vocabulary.special_ids == {0}


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: No such file"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"model": {"vocab": {"a": 0}}, "decoder": null}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}',
        b'{"model": {}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": "0"}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": -1}}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 1}]}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": -1}]}',
        b'{"model": {"vocab": [["a", 0.5]]}, "decoder": {"type": "ByteLevel"}}',
        b'{"model": {"vocab": {"a": 99999999999}}, "decoder": {"type": "ByteLevel"}}',
        b"[" * 100_000,
        b"\xff\xfe\xfd",
    ],
)
def test_unusable_file_is_named(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(document)
    with pytest.raises(VocabularyError, match=r"tokenizer\.json: not a usable tokenizer\.json"):
        load_vocabulary(tmp_path)
