"""Builds `tokenizer.json` and its companions from a GGUF file's vocabulary and merges.

Written out here rather than by a general converter because those lose SmolLM2's digit split,
which shows as wrong ids after two spaces and in non-ASCII numerals.
"""

from typing import Final

from services.models.errors import ModelFileError, UnsupportedModelError
from services.models.gguf import GgufFile

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

Json = dict[str, object]


def tokenizer_json(file: GgufFile) -> Json:
    """The tokenizer as the `tokenizers` library reads it.

    BPE over bytes without unknown token, byte fallback, normalizer or post-processor: nothing is
    ever added to a text, and no text is refused.
    """
    model, pre = file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre")
    if (model, pre) != ("gpt2", "smollm"):
        raise UnsupportedModelError(
            file.path,
            f"tokenizer {model}/{pre}; only gpt2/smollm can be converted, use the model's safetensors directory",
        )
    tokens = file.texts("tokenizer.ggml.tokens")
    id_by_token = {token: token_id for token_id, token in enumerate(tokens)}
    if len(id_by_token) != len(tokens):
        raise ModelFileError(file.path, "malformed: a token appears twice in the vocabulary")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, tokens),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": id_by_token,
            "merges": _merges(file, id_by_token),
        },
    }


def tokenizer_config(file: GgufFile, context_tokens: int) -> Json:
    """What transformers' tokenizers need beside `tokenizer.json`."""
    tokens = file.texts("tokenizer.ggml.tokens")
    named = {name: token_id(file, name) for name in ("bos", "eos", "padding")}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[named["bos"]],
        "eos_token": tokens[named["eos"]],
        "pad_token": tokens[named["padding"]],
    }


def token_id(file: GgufFile, name: str) -> int:
    """The id of the `bos`, `eos` or `padding` token; raises if it is not in the vocabulary."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = file.integer(key)
    if value >= len(file.texts("tokenizer.ggml.tokens")):
        raise ModelFileError(file.path, f"malformed: {key} {value} is outside the vocabulary")
    return value


def _added_tokens(file: GgufFile, tokens: tuple[str, ...]) -> list[Json]:
    kinds = file.integers("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise ModelFileError(file.path, f"malformed: {len(kinds)} types for {len(tokens)} tokens")
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _merges(file: GgufFile, id_by_token: dict[str, int]) -> list[list[str]]:
    merges: list[list[str]] = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if not (left in id_by_token and right in id_by_token and left + right in id_by_token):
            raise ModelFileError(file.path, f"malformed: merge {merge!r} is not of the vocabulary")
        merges.append([left, right])
    return merges
