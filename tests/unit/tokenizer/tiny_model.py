"""A model directory for the tokenizer: every byte is a token, a few pairs merge, three special tokens."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT, IM_START, IM_END = 0, 1, 2
CONTEXT_TOKENS = 400

CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""  # noqa: E501


def write_tiny_model(target: Path, template: str | None = CHATML, **generation_config: object) -> Path:
    """Fills the new directory ``target``."""
    target.mkdir()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r")]
    tokens = [*specials, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in specials])
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}))
    (target / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT_TOKENS}))
    (target / "generation_config.json").write_text(json.dumps(generation_config))
    if template is not None:
        (target / "chat_template.jinja").write_text(template)
    return target
