"""The tokenizers that fences are driven with: SmolLM2's, the default model's, and what ``make bench-data`` fetched."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from bench.data import tokenizer_path
from bench.fences.programs import GLM_MARKERS
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.token_rows import TokenRows
from services.engine.fence.tokens import FenceTokens
from services.vocabulary import parse_vocabulary

_END_TEXTS = {"smollm2": "<|im_end|>", "qwen3": "<|im_end|>", "deepseek-v4": "<｜end▁of▁sentence｜>"}

_ADDED = {"glm": GLM_MARKERS, "qwen": ("<think>", "</think>", "<tool_call>", "</tool_call>")}


@cache
def _compiler(path: Path, end_text: str, more: tuple[str, ...]) -> FenceCompiler:
    document = json.loads(path.read_text())
    next_id = 1 + max([*document["model"]["vocab"].values(), *(token["id"] for token in document["added_tokens"])])
    for number, content in enumerate(more):
        token = {"id": next_id + number, "content": content, "special": False, "normalized": False}
        document["added_tokens"].append({**token, "single_word": False, "lstrip": False, "rstrip": False})
    (eos_id,) = [token["id"] for token in document["added_tokens"] if token["content"] == end_text]
    text = json.dumps(document)
    return FenceCompiler(TokenRows(FenceTokens(parse_vocabulary(text), text, [eos_id])))


def compiler(name: str, smollm2_dir: Path) -> FenceCompiler:
    """``glm`` and ``qwen`` are SmolLM2's with those models' tags as added tokens. Raises FileNotFoundError for what is
    not there."""
    if name in ("smollm2", *_ADDED):
        return _compiler(smollm2_dir / "tokenizer.json", _END_TEXTS["smollm2"], _ADDED.get(name, ()))
    path = tokenizer_path(name)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: make bench-data fetches it")
    return _compiler(path, _END_TEXTS[name], ())


def marker_ids(compiler: FenceCompiler, *spellings: str) -> dict[str, int]:
    """Of added tokens."""
    ids = {compiler.tokens.spellings[token_id].decode(): token_id for token_id in compiler.tokens.added_ids}
    return {spelling: ids[spelling] for spelling in spellings}
