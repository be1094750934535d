"""Small tokenizers with the pre-tokenizers, normalizers and added tokens of real families, trained where they stand."""

from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN = LLAMA3.replace("{1,3}", "")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    "\r\n"
    r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["""
    "\r\n"
    rf"""]*|{SPACES}"""
)

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|im_end|>!")
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "｜DSML｜")
"""Added, but not special. The third special one begins like the second, so that the longest has to win."""

_TEXT = (
    "def read(self, path):\n    return self.value['key']  # it's the reader's\n\n"
    "The quick brown fox jumps over 1234567 lazy dogs; HTTPServer won't answer.\r\n\r\n"
    "naïve café ½ Ⅷ ٣٤ 漢字かな交じり文 日本語 한국어 हिन्दी العربية ไทย 😀👩\u200d👧 "
    "\U0001d4d7\U0001d4d4\t\t==== ---- ||||\n"
    "a\u0301\u0301\u0301\u0301 e\u0301\u0323 \u0323\u0323\u0323\u0323 x\u0338 <|im_end|> <tool_call> </think>\n"
) * 4


def _split(*regexes: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in regexes]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _train(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
    *,
    normalized_markers: bool = False,
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=560, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in SPECIALS])
    tokenizer.add_tokens([AddedToken(content, normalized=normalized_markers) for content in MARKERS])
    return tokenizer


_FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "llama3": lambda: _train(_split(LLAMA3)),
    "qwen3": lambda: _train(_split(QWEN), normalizers.NFC()),
    "o200k": lambda: _train(_split(O200K)),
    "deepseek": lambda: _train(
        _split(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK), normalizers.Sequence([]), normalized_markers=True
    ),
    "smollm2": lambda: _train(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
}
FAMILIES = tuple(_FAMILIES)


@cache
def _json(family: str) -> str:
    return _FAMILIES[family]().to_str()


def trained(family: str) -> Tokenizer:
    """A tokenizer of ``family``, which the caller owns; always the same one."""
    return Tokenizer.from_str(_json(family))
