"""A tokenizer whose merges spell a control token cannot keep text literal: the start says so."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from services.tokenizer.models import load_model
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits


def test_merges_that_reach_a_control_token_are_found():
    vocab = {"<": 0, "x": 1, ">": 2, "<x": 3, "<x>": 4, "<y>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("<", "x"), ("<x", ">")]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<x>", special=True), AddedToken("<y>", special=True)])
    assert RopeEncoder(tokenizer, RopeLimits()).unspeakable() == ("<x>",)


def test_the_default_model_has_none(smollm2_dir: Path):
    assert RopeEncoder(load_model(smollm2_dir, None, (), None).tokenizer, RopeLimits()).unspeakable() == ()
