"""Fences against llguidance's parametric grammars, which say the same of unique and required keys in any order."""

import os
import random
from dataclasses import dataclass

import llguidance
import pytest

from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import KeyItem, Keys, Literal, Node, Raw, Sequence, Value
from tests.unit.engine.fence.small_fences import eos, legal, marker, program, small_compiler, small_tokens

NUM_WALKS = 400 if os.environ.get("FENCEPOST_SOAK") else 12
TAG = "｜DSML｜"
SCHEMAS: dict[str, str | None] = {
    "path": None,
    "count": '{"type": "integer", "minimum": 0, "maximum": 500}',
    "mode": '{"enum": ["a", "ab", null]}',
    "old": None,
    "list": '{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}',
}
"""By key; None: raw text."""


@dataclass(frozen=True)
class Shape:
    """The first ``num_required`` keys are required."""

    num_keys: int
    num_required: int

    def fence(self) -> Fence:
        nodes: list[Node] = [Sequence((1, 2)), Literal(f"<{TAG}calls>")]
        items: list[KeyItem] = []
        after = f"</{TAG}p>"
        for position, (key, schema) in enumerate([*SCHEMAS.items()][: self.num_keys]):
            nodes_before = 3 + position
            items.append(KeyItem(f'<{TAG}p name="{key}">', nodes_before, position < self.num_required))
            nodes.append(Raw(after) if schema is None else Value(schema, after=after))
        nodes.insert(2, Keys(tuple(items), "", f"</{TAG}calls>"))
        return Fence(small_compiler().compile(program(*nodes, markers=[TAG])))

    def oracle(self) -> llguidance.LLMatcher:
        mark = f"<[{marker(TAG)}]>"
        lines = [
            f'start: "<" {mark} "calls>" keys::0x0',
            f'keys::_: "</" {mark} "calls>" %if is_ones([0:{self.num_required}])',
        ]
        rules = ["TEXT: /(?s:.*)<\\// & ~/(?s:.*)<\\/｜DSML｜p>(?s:.*)/"]
        for bit, (key, schema) in enumerate([*SCHEMAS.items()][: self.num_keys]):
            value = "TEXT" if schema is None else f'v{bit} "</"'
            lines.append(
                f'  | "<" {mark} "p name=\\"{key}\\">" {value} {mark} "p>" keys::set_bit({bit}) %if bit_clear({bit})'
            )
            if schema is not None:
                options = '"x-guidance": {"item_separator": ", ", "whitespace_flexible": false}'
                rules.append(f"v{bit}: %json {schema[:-1]}, {options}}}")
        grammar = llguidance.LLMatcher.grammar_from_lark("\n".join([*lines, *rules]))
        matcher = llguidance.LLMatcher(small_tokens().lltokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        return matcher


def oracle_ids(matcher: llguidance.LLMatcher) -> set[int]:
    bits = matcher.compute_bitmask()
    return {token_id for token_id in range(small_tokens().num_ids) if bits[token_id >> 3] >> (token_id & 7) & 1}


@pytest.mark.parametrize("shape", [Shape(1, 1), Shape(3, 1), Shape(5, 2), Shape(5, 5)], ids=str)
def test_on_any_prefix_the_fence_allows_nothing_that_the_oracle_refuses(shape: Shape) -> None:
    num_inside = num_finished = 0
    for walk in range(NUM_WALKS):
        rng = random.Random(walk)
        fence, oracle = shape.fence(), shape.oracle()
        for number in range(500):
            allowed, expected = legal(fence), oracle_ids(oracle)
            assert allowed
            assert allowed <= expected
            is_raw = len(allowed) > 200
            if fence.region is Region.VALUE and is_raw:
                # In structure only canonical tokens are legal; in text everything is that may be.
                assert allowed == expected
                num_inside += 1
            if eos() in allowed:
                assert oracle.is_accepting()
                num_finished += 1
                break
            closing = [token_id for token_id in allowed if small_tokens().texts[token_id] in (b"</", b"<", b"/", b"")]
            hurries = bool(closing) and rng.random() < (0.2 if number < 60 else 0.95)
            token_id = rng.choice(sorted(closing if hurries else allowed))
            assert fence.push(token_id)
            assert oracle.consume_token(token_id)
    assert num_inside > NUM_WALKS
    assert num_finished > NUM_WALKS // 2
