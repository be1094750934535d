"""Drives fences with random and with adversarial tokens, and judges what comes out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jsonschema
import numpy as np

from bench.fences.agent_tools import Schema
from bench.fences.programs import (
    CHATML_JSON,
    DSML,
    GLM_MARKERS,
    GLM_XML,
    QWEN_XML,
    Markup,
    Mode,
    program,
)
from bench.fences.strict_parsers import (
    Calls,
    Parse,
    parse_chatml_json,
    parse_dsml,
    parse_glm_xml,
    parse_qwen_xml,
)
from bench.fences.vocabularies import marker_ids
from services.engine.fence.allowed import Free, Ids, Mask
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import Program


@dataclass(frozen=True)
class Case:
    """A dialect with a vocabulary."""

    id: str
    vocabulary: str
    markup: Markup
    parse: Parse
    markers: tuple[str, ...] = ()
    trigger: str | None = None
    terminator: str = ""
    """Of raw text, where that is no marker."""

    def program(
        self, compiler: FenceCompiler, tools: Mapping[str, Schema], mode: Mode, max_calls: int | None = None
    ) -> Program:
        markers = marker_ids(compiler, *self.markers)
        return program(self.markup, tools, mode, markers=markers, max_calls=max_calls, trigger=self.trigger)

    def compile(
        self, compiler: FenceCompiler, tools: Mapping[str, Schema], mode: Mode, max_calls: int | None = None
    ) -> CompiledFence:
        return compiler.compile(self.program(compiler, tools, mode, max_calls))


_TOOL_CALL = ("<tool_call>", "</tool_call>")
CASES = (
    Case("dsml", "deepseek-v4", DSML, parse_dsml, ("｜DSML｜",), "｜DSML｜"),
    Case("chatml_json-markers", "qwen3", CHATML_JSON, parse_chatml_json, _TOOL_CALL, "<tool_call>"),
    Case("chatml_json-text", "smollm2", CHATML_JSON, parse_chatml_json),
    Case("qwen_xml-markers", "qwen3", QWEN_XML, parse_qwen_xml, _TOOL_CALL, "<tool_call>", "\n</parameter>\n"),
    Case("qwen_xml-text", "smollm2", QWEN_XML, parse_qwen_xml, terminator="\n</parameter>\n"),
    Case("glm_xml-markers", "glm", GLM_XML, parse_glm_xml, GLM_MARKERS, "<tool_call>"),
    Case("glm_xml-text", "smollm2", GLM_XML, parse_glm_xml, terminator="</arg_value>\n"),
)

_TEMPTING = (
    *("</", "<", '"}', '"', "}", "]", "{", "\\", "1e", "-", "0", "null", "true", "\n", "\n\n", ">", "</parameter", "2"),
    *("｜", "ML", "DS", "call", "tool", "_", ", ", '", "', " ", "}}\n", ">\n", "é", ".", "00", "\\u"),
)
_CLOSING = (
    *("</", '"}', '"', "}", "]", "0", "1", ">", "\n", "parameter", "arg", "_value", '"]', ",", ', "', " "),
    *(":", "/", "@"),
)


@dataclass(frozen=True)
class Answer:
    """What was driven out of a fence."""

    text: bytes
    ids: list[int]
    num_forced: int


def drive(
    case: Case,
    compiled: CompiledFence,
    rng: random.Random,
    *,
    is_adversarial: bool,
    max_tokens: int = 3_000,
    text_trigger: str | None = None,
) -> Answer:
    """One whole answer, of which the calls start at ``text_trigger`` or at the trigger itself. Raises AssertionError
    where the fence leaves nothing to say, or never ends."""
    tokens = compiled.tokens
    tempting = [tokens.encode(text)[0] for text in _TEMPTING] + sorted(tokens.eos_ids) + [*compiled.program.marker_ids]
    closing = [tokens.encode(text)[0] for text in _CLOSING]
    fence, ids, planned, num_forced = Fence(compiled), list[int](), list[int](), 0
    num_free = rng.randint(0, 6)
    budget = rng.randint(20, 150)
    start = [] if compiled.program.trigger is None else tokens.encode(text_trigger or compiled.lead_in.decode())
    if compiled.trigger_id is not None and text_trigger is None:
        start.append(compiled.trigger_id)
    for number in range(max_tokens):
        if fence.region is Region.PROSE:
            if num_free == 0:
                for token_id in start:
                    assert fence.push(token_id)
                    ids.append(token_id)
                num_free = -1
                continue
            num_free -= 1
        forced = fence.forced()
        if fence.region is not Region.VALUE:
            planned = []
        elif not planned and (number > budget or rng.random() < 0.1):
            # As if the value were over now; where that does not fit, it is text.
            planned = list(tokens.encode(case.terminator))
        if planned and _is_legal(planned[0], fence):
            token_id = planned.pop(0)
        elif forced:
            num_forced += 1
            token_id = forced[0]
            assert fence.allowed() == Ids(frozenset({token_id}))
        else:
            planned = []
            token_id = _choose(fence, rng, tempting, closing, is_adversarial, number > budget)
        assert fence.push(token_id), (token_id, ids)
        if token_id in tokens.eos_ids:
            return Answer(b"".join(tokens.spellings[one] for one in ids), ids, num_forced)
        ids.append(token_id)
    raise AssertionError(f"the answer never ends: {b''.join(tokens.spellings[one] for one in ids)[-200:]!r}")


def _choose(
    fence: Fence, rng: random.Random, tempting: list[int], closing: list[int], is_adversarial: bool, is_late: bool
) -> int:
    allowed = fence.allowed()
    tokens = fence.tokens
    if isinstance(allowed, Free):
        return rng.choice(tokens.encode(" and so on, 1 < 2"))
    if fence.region is Region.PROSE:
        return _any_of(allowed, rng, without=tokens.added_ids)
    assert fence.is_finishable or not any(_is_among(token_id, allowed) for token_id in tokens.eos_ids)
    if is_late and fence.is_finishable:
        return min(tokens.eos_ids)
    wanted = closing if is_late or rng.random() < 0.25 else tempting if is_adversarial and rng.random() < 0.8 else []
    fitting = [token_id for token_id in wanted if _is_among(token_id, allowed)]
    if wanted is closing:
        markers = [token_id for token_id in fence.marker_ids if _is_among(token_id, allowed)]
        if markers and rng.random() < 0.9:
            return rng.choice(markers)
    return rng.choice(fitting) if fitting else _any_of(allowed, rng)


def _any_of(allowed: Ids | Mask, rng: random.Random, without: frozenset[int] = frozenset()) -> int:
    if isinstance(allowed, Ids):
        return rng.choice(sorted(allowed.ids - without))
    while True:
        words = np.flatnonzero(allowed.row)
        assert len(words), "nothing is legal"
        word = int(words[rng.randrange(len(words))])
        token_id = word * 32 + rng.choice([bit for bit in range(32) if int(allowed.row[word]) >> bit & 1])
        if token_id not in without:
            return token_id


def _is_legal(token_id: int, fence: Fence) -> bool:
    allowed = fence.allowed()
    return isinstance(allowed, Free) or _is_among(token_id, allowed)


def _is_among(token_id: int, allowed: Ids | Mask) -> bool:
    if isinstance(allowed, Ids):
        return token_id in allowed.ids
    return bool(int(allowed.row[token_id >> 5]) >> (token_id & 31) & 1)


def judge(answer: Answer, case: Case, tools: Mapping[str, Schema], mode: Mode) -> Calls:
    """The calls of an answer, which must be canonical and fit their schemas."""
    block = _block_of(answer.text, case) if mode is Mode.AUTO else answer.text
    calls = case.parse(block.decode(), tools)
    for name, pairs in calls:
        arguments = dict(pairs)
        assert len(arguments) == len(pairs), "a parameter twice"
        validator: Any = jsonschema.Draft202012Validator(_enforced(tools[name]))
        validator.validate(arguments)
    return calls


def _block_of(text: bytes, case: Case) -> bytes:
    """Without what was said before, which need not be whole characters and never spells a block's beginning."""
    markup = case.markup
    start = text.index(markup.opening.partition("\n")[0].encode())
    lead_in = markup.lead_in.encode()
    assert text[:start].endswith(lead_in) or (start == 0 and markup.is_bare_at_start)
    return text[start:] if markup.is_bare_at_start else text[start - len(lead_in) :]


def _enforced(schema: Any) -> Any:
    """Without the keywords that fences don't enforce."""
    if isinstance(schema, dict):
        schema = cast("dict[str, Any]", schema)
        return {key: _enforced(value) for key, value in schema.items() if key not in ("uniqueItems", "format")}
    return [_enforced(value) for value in cast("list[Any]", schema)] if isinstance(schema, list) else schema
