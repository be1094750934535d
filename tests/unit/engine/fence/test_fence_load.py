"""What a tokenizer must be like to be fenced."""

import json

import pytest

from services.engine.fence.compile import FenceCompiler
from services.engine.fence.errors import FenceError
from services.engine.fence.program import Literal, Program, Trigger
from services.engine.fence.token_rows import TokenRows
from services.engine.fence.tokens import FenceTokens
from services.vocabulary import parse_vocabulary
from tests.unit.engine.fence.small_fences import eos, marker, small_compiler, small_tokens
from tests.unit.tokenizer.trained_tokenizers import trained


def tokens_of(document: dict[str, object], num_ids: int | None = None) -> FenceTokens:
    text = json.dumps(document)
    return FenceTokens(parse_vocabulary(text), text, [eos()], num_ids)


def document() -> dict[str, object]:
    return json.loads(trained("smollm2").to_str())


def test_logits_may_be_wider_than_the_vocabulary() -> None:
    wide = tokens_of(document(), 700)
    assert (wide.num_ids, wide.num_words) == (700, 22)
    assert max(wide.ids(wide.text_row)) < len(small_tokens().texts)
    assert wide.ids(wide.row([0, 31, 32, 699])) == [0, 31, 32, 699]


def test_a_model_without_an_end_token_is_refused() -> None:
    text = json.dumps(document())
    with pytest.raises(FenceError, match="no end token"):
        FenceTokens(parse_vocabulary(text), text, [])


def test_a_literal_that_the_tokenizer_cannot_write_is_refused() -> None:
    lossy = document()
    model = lossy["model"]
    assert isinstance(model, dict)
    model["vocab"] = {piece.replace("z", "qqq"): token_id for piece, token_id in model["vocab"].items()}
    model["merges"] = [merge for merge in model["merges"] if not any("z" in piece for piece in merge)]
    fences = FenceCompiler(TokenRows(tokens_of(lossy)))
    fences.compile(Program((Literal("a"),)))
    with pytest.raises(FenceError, match="cannot write 'fizz'"):
        fences.compile(Program((Literal("fizz"),)))


def test_a_marker_that_another_token_spells_is_refused() -> None:
    texts = small_tokens().texts
    inside = next(text[1:] for text in texts if len(text) > 3 and text.isalpha() and text[1:] not in texts).decode()
    double = document()
    added = double["added_tokens"]
    assert isinstance(added, list)
    added.append({**added[-1], "id": len(texts), "content": inside})
    fences = FenceCompiler(TokenRows(tokens_of(double)))
    with pytest.raises(FenceError, match=f"marker '{inside}' is spelt by token"):
        fences.compile(Program((Literal("!"),), marker_ids=(len(texts),)))


def test_markers_are_checked_wherever_they_stand() -> None:
    small_compiler().compile(Program((Literal("a"),), trigger=Trigger("", marker("<think>"))))
    with pytest.raises(FenceError, match="marker 3 is not an added token"):
        small_compiler().compile(Program((Literal("a"),), trigger=Trigger("", 3)))
    with pytest.raises(FenceError, match="marker 4 is not an added token"):
        small_compiler().compile(Program((Literal("a"),), marker_ids=(4,)))


def test_words_within_words_are_found() -> None:
    tokens = small_tokens()
    for text in (b"th", b"e", b" a", b"\n", b"zzz"):
        assert list(tokens.containing(text)) == [one for one, spelling in enumerate(tokens.texts) if text in spelling]
        starting = {one for one, spelling in enumerate(tokens.texts) if spelling.startswith(text)}
        assert set(tokens.with_prefix(text)) == starting
        assert set(tokens.with_suffix(text)) == {
            one for one, spelling in enumerate(tokens.texts) if spelling.endswith(text)
        }
        assert tokens.has_longer(text) == any(len(tokens.texts[one]) > len(text) for one in starting)
