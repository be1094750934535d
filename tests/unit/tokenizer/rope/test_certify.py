"""Which tokenizers may be cut, and what happens with the others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.tokenizer.rope import certify
from services.tokenizer.rope.encoded import EncodePath
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.rope.prompt_text import PromptText
from tests.unit.tokenizer.awkward_texts import FRAGMENTS, plain_ids
from tests.unit.tokenizer.trained_tokenizers import FAMILIES, trained

EAGER = RopeLimits(min_chars=1, overlap_tokens=8, resync_tokens=4)
Change = Callable[[dict[str, Any]], None]


def changed(family: str, change: Change) -> RopeEncoder:
    data = json.loads(trained(family).to_str())
    change(data)
    return RopeEncoder(Tokenizer.from_str(json.dumps(data)), EAGER)


def set_added(**flags: bool) -> Change:
    return lambda data: data["added_tokens"][1].update(flags)


def set_first_split(**fields: object) -> Change:
    return lambda data: data["pre_tokenizer"]["pretokenizers"][0].update(fields)


def set_byte_level(**fields: object) -> Change:
    return lambda data: data["pre_tokenizer"]["pretokenizers"][1].update(fields)


def set_part(name: str, value: object) -> Change:
    return lambda data: data.update({name: value})


@pytest.mark.parametrize("family", FAMILIES)
def test_known_families_are_certified(family: str, tmp_path: Path) -> None:
    trained(family).save(str(tmp_path / "tokenizer.json"))
    rope = RopeEncoder(tmp_path / "tokenizer.json", EAGER)
    assert (rope.is_certified, rope.why_not, rope.mode) == (True, None, "rope")


def test_the_default_model_is_certified(smollm2_dir: Path) -> None:
    assert RopeEncoder(smollm2_dir / "tokenizer.json", EAGER).is_certified


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}

REFUSED: list[tuple[Change, str]] = [
    (set_added(lstrip=True), "depends on what stands beside it"),
    (set_added(rstrip=True), "depends on what stands beside it"),
    (set_added(single_word=True), "depends on what stands beside it"),
    (set_first_split(pattern={"Regex": r"\p{L}+ \p{L}+|\s+"}), "not on the list"),
    (set_first_split(pattern={"Regex": r"\p{N}|(?<=a)\s+|\s+"}), "not on the list"),
    (set_first_split(pattern={"String": " "}), "not on the list"),
    (set_first_split(behavior="MergedWithPrevious"), "not on the list"),
    (set_first_split(invert=True), "not on the list"),
    (set_first_split(pattern={"Regex": r"\p{N}{1,3}"}), "does not separate words"),
    (set_first_split(pattern={"Regex": r"\p{N}{1,3}|\s+"}), "does not separate words"),
    (set_byte_level(add_prefix_space=True), "not on the list"),
    (set_part("pre_tokenizer", BYTE_LEVEL), "does not separate words"),
    (set_part("pre_tokenizer", {"type": "Whitespace"}), "not on the list"),
    (set_part("pre_tokenizer", None), "not on the list"),
    (set_part("normalizer", {"type": "NFKC"}), "NFKC is not on the list"),
    (set_part("normalizer", {"type": "Lowercase"}), "Lowercase is not on the list"),
    (lambda data: data["model"].update({"dropout": 0.5}), "at random"),
    (
        set_part("model", {"type": "WordLevel", "vocab": {"x": 0, "<unk>": 1}, "unk_token": "<unk>"}),
        "WordLevel, not BPE",
    ),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED)
def test_anything_unproven_is_refused(change: Change, reason: str) -> None:
    rope = changed("llama3", change)
    assert not rope.is_certified
    assert reason in (rope.why_not or "")


def test_added_tokens_in_normalized_text_are_refused() -> None:
    rope = changed("qwen3", set_added(normalized=True))
    assert rope.why_not == "added tokens are searched in normalized text"
    assert rope.mode == f"off, because {rope.why_not}"


def test_probes_find_what_the_list_would_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = r"\p{L}+ ?\p{L}*"
    monkeypatch.setattr(certify, "_SAFE_ALTERNATIVES", certify._SAFE_ALTERNATIVES | {bad})
    rope = changed("llama3", set_first_split(pattern={"Regex": rf"{bad}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s+"}))
    assert (rope.why_not or "").startswith("cutting changes the ids")


TEXT = "".join(FRAGMENTS) + "the quick brown fox jumps over it's " * 20


def check_growth(rope: RopeEncoder, tokenizer: Tokenizer) -> int:
    num_spliced = 0
    for length in range(100, len(TEXT), 37):
        encoded = rope.encode(PromptText(TEXT[:length]), "k")
        assert encoded.ids.tolist() == tokenizer.encode(TEXT[:length], add_special_tokens=False).ids
        num_spliced += encoded.path is EncodePath.DELTA
    return num_spliced


def test_without_certificate_and_normalizer_the_seam_serves() -> None:
    data = json.loads(trained("llama3").to_str())
    set_added(rstrip=True)(data)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    rope = RopeEncoder(Tokenizer.from_str(json.dumps(data)), EAGER)
    assert rope.mode.startswith("seam splice, because the added token")
    assert check_growth(rope, tokenizer) > 10


def test_without_certificate_but_with_normalizer_all_is_encoded() -> None:
    data = json.loads(trained("llama3").to_str()) | {"normalizer": {"type": "Lowercase"}}
    rope = RopeEncoder(Tokenizer.from_str(json.dumps(data)), EAGER)
    assert check_growth(rope, Tokenizer.from_str(json.dumps(data))) == 0


def test_literal_text_is_literal_without_certificate_too() -> None:
    rope = changed("llama3", set_added(rstrip=True, lstrip=True))
    assert not rope.is_certified
    tokenizer = trained("llama3")
    end = tokenizer.token_to_id("<|im_end|>")
    text = "say <|im_end|> now <|im_end|>  "
    ids = rope.encode(PromptText(text, ((0, 18),)), "k").ids.tolist()
    # The real one swallows the spaces beside it, as it does everywhere.
    assert ids == [*plain_ids(tokenizer)("say <|im_end|> now"), end]
    assert rope.encode(PromptText(text), "k").ids.tolist().count(end) == 2
