"""Fences over a vocabulary of a few hundred tokens, for tests of one thing each."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from services.engine.fence.allowed import Free, Ids
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.machine import Fence
from services.engine.fence.program import Node, Program, ProgramEnd, Trigger
from services.engine.fence.token_rows import TokenRows
from services.engine.fence.tokens import FenceTokens
from services.vocabulary import parse_vocabulary
from tests.unit.tokenizer.trained_tokenizers import trained


@cache
def small_tokens() -> FenceTokens:
    """With every byte, some merges, and the markers ``<tool_call>``, ``</tool_call>``, ``<think>``, ``｜DSML｜``."""
    text = trained("smollm2").to_str()
    vocabulary = parse_vocabulary(text)
    return FenceTokens(vocabulary, text, [vocabulary.token_bytes.index(b"<|im_end|>")])


@cache
def small_compiler() -> FenceCompiler:
    return FenceCompiler(TokenRows(small_tokens()))


def marker(spelling: str) -> int:
    return small_tokens().spellings.index(spelling.encode())


def eos() -> int:
    (token_id,) = small_tokens().eos_ids
    return token_id


def program(
    *nodes: Node,
    trigger: Trigger | None = None,
    markers: Iterable[str] = (),
    end: ProgramEnd = ProgramEnd.EOS_ONLY,
    gate: bool = False,
) -> Program:
    """The first node is the entry."""
    return Program(nodes, 0, trigger, gate, tuple(marker(spelling) for spelling in markers), end)


def fence(*nodes: Node, **more: object) -> Fence:
    """``more``: as of ``program``."""
    return Fence(small_compiler().compile(program(*nodes, **more), marker("<think>")))  # type: ignore[arg-type]


def legal(one: Fence) -> set[int]:
    """All legal ids."""
    allowed = one.allowed()
    if isinstance(allowed, Free):
        return set(range(small_tokens().num_ids))
    return set(allowed.ids) if isinstance(allowed, Ids) else set(small_tokens().ids(allowed.row))


def takes(one: Fence, *parts: str | int) -> bool:
    """Whether a clone takes these texts and tokens, texts byte by byte as far as it may be."""
    one = one.clone()
    return all(_push_part(one, part) for part in parts)


def write(one: Fence, *parts: str | int) -> None:
    """Push what ``takes`` would."""
    for part in parts:
        assert _push_part(one, part), part


def _push_part(one: Fence, part: str | int) -> bool:
    if isinstance(part, int):
        return part in legal(one) and one.push(part)
    tokens, text = small_tokens(), part.encode()
    while text:
        lengths = {len(tokens.texts[token_id]): token_id for token_id in legal(one) if _begins(text, token_id)}
        if not lengths:
            return False
        assert one.push(lengths[min(lengths)])
        text = text[min(lengths) :]
    return True


def _begins(text: bytes, token_id: int) -> bool:
    spelling = small_tokens().texts[token_id]
    return bool(spelling) and text.startswith(spelling)


def write_canonically(one: Fence, *texts: str | int) -> None:
    """Push the canonical tokens of each text."""
    for text in texts:
        for token_id in [text] if isinstance(text, int) else small_tokens().encode(text):
            assert token_id in legal(one), small_tokens().spellings[token_id]
            assert one.push(token_id)


def is_over(one: Fence, *parts: str | int) -> bool:
    """Whether the answer may end behind these."""
    one = one.clone()
    write(one, *parts)
    return one.is_finishable
