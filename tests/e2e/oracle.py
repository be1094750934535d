"""Greedy answers from transformers alone: each from a cold start, with no server, pages or batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer


class Oracle:
    """The default model as its library runs it, with matrices rounded to fp16."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._template = transformers.AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        # As the engine holds them by default: products and sums are float32 there too.
        self._model.requires_grad_(False)
        for matrix in (parameter for parameter in self._model.parameters() if parameter.dim() > 1):
            matrix.copy_(matrix.to(torch.float16))

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        text = self._template.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def answer(self, messages: list[dict[str, str]], max_tokens: int) -> tuple[str, int]:
        """Text and number of tokens, the end token included."""
        ids = self.prompt(messages)
        out: list[int] = []
        state = transformers.DynamicCache()
        with torch.inference_mode():
            while len(out) < max_tokens and 2 not in out:
                fed = torch.tensor([out[-1:] or ids])
                logits = self._model(fed, cache=state, use_cache=True, logits_to_keep=1).logits
                out.append(int(logits[0, -1].argmax()))
        return self._tokenizer.decode(out, skip_special_tokens=True), len(out)
