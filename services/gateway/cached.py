"""How the gateway shows which part of a prompt was not computed again."""

from __future__ import annotations

import re
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

_ALWAYS_SHOWN = (tokenizer_pb2.TIER_VRAM, tokenizer_pb2.TIER_SSD)
_NOT_IN_A_QUOTED_VALUE = re.compile(r"[^ !#-\[\]-~]")


def tokens_by_tier(cached: tokenizer_pb2.Cached) -> dict[str, int]:
    """Cached tokens by tier's name: vram and ssd always, others where there are any."""
    tokens = {_name(tier): 0 for tier in _ALWAYS_SHOWN}
    for entry in cached.by_tier:
        tokens[_name(entry.tier)] = tokens.get(_name(entry.tier), 0) + entry.tokens
    return tokens


def details(counted: tokenizer_pb2.Usage) -> dict[str, Any]:
    """What a usage says beside the protocol's own numbers: tiers, what was computed, what was missed."""
    cached = counted.cached
    found: dict[str, Any] = {
        "cached_tokens_by_tier": tokens_by_tier(cached),
        "recomputed_tokens": cached.recomputed_tokens,
    }
    if counted.timings.restored_ms:
        found["restored_ms"] = round(counted.timings.restored_ms, 1)
    if cached.HasField("miss"):
        miss = cached.miss
        found["cache_miss"] = {
            "reason": miss.reason,
            **({"at_token": miss.at_token} if miss.HasField("at_token") else {}),
            **({"segment": miss.segment} if miss.HasField("segment") else {}),
        }
    return found


def header(cached: tokenizer_pb2.Cached) -> str:
    """E.g. ``vram=120 ssd=0 recomputed=15 miss=forked at=120 segment=tools``; values with spaces are quoted."""
    values: dict[str, object] = {**tokens_by_tier(cached), "recomputed": cached.recomputed_tokens}
    if cached.HasField("miss"):
        values["miss"] = _quoted(cached.miss.reason)
        if cached.miss.HasField("at_token"):
            values["at"] = cached.miss.at_token
        if cached.miss.HasField("segment"):
            values["segment"] = _quoted(cached.miss.segment)
    return " ".join(f"{name}={value}" for name, value in values.items())


def _name(tier: tokenizer_pb2.Tier.ValueType) -> str:
    return tokenizer_pb2.Tier.Name(tier).removeprefix("TIER_").lower()


def _quoted(text: str) -> str:
    clean = _NOT_IN_A_QUOTED_VALUE.sub("?", text)
    return f'"{clean}"' if " " in clean or not clean else clean
