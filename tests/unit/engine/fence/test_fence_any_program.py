"""Programs of any shape, beside the regular expressions that say the same."""

import itertools
import os
import random
import re
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.fence.machine import Fence
from services.engine.fence.program import (
    Branch,
    Choose,
    KeyItem,
    Keys,
    Literal,
    Mark,
    Node,
    Program,
    Raw,
    Repeat,
    Sequence,
    Value,
)
from tests.unit.engine.fence.small_fences import eos, legal, marker, small_compiler, small_tokens

EXAMPLES = 2_000 if os.environ.get("FENCEPOST_SOAK") else 60
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[0-9a-f]{2}){0,2}"'
ENDINGS = (b"|", b"</", b"x", b">", b"\n", b'"', b";", b"}", b"!")
TEXTS = ["a", "self", "}\n", "the ", "</x>", "é", "1", '", "', "a<think>b"]


@dataclass
class Shape:
    """Nodes as they are drawn, and a pattern for each."""

    nodes: list[Node] = field(default_factory=list[Node])
    patterns: list[str] = field(default_factory=list[str])

    def add(self, node: Node, pattern: str) -> int:
        self.nodes.append(node)
        self.patterns.append(f"(?:{pattern})")
        return len(self.nodes) - 1


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Shape, int]:
    shape = Shape()
    return shape, draw_node(draw, shape, 3)


def draw_node(draw: st.DrawFn, shape: Shape, depth: int) -> int:
    kinds = ["literal", "mark", "raw", "value"] + ["sequence", "choose", "keys", "repeat"] * (depth > 0)
    match draw(st.sampled_from(kinds)):
        case "literal":
            text = draw(st.sampled_from(TEXTS))
            return shape.add(Literal(text), re.escape(text))
        case "mark":
            return shape.add(Mark(marker("<think>")), "<think>")
        case "raw":
            end = draw(st.sampled_from(["|", "</x>", "\n\n"]))
            most = draw(st.sampled_from([None, 1, 4]))
            count = "*" if most is None else f"{{0,{most}}}"
            raw = shape.add(Raw(end, 0, most), f"(?:(?!{re.escape(end)}).){count}{re.escape(end)}")
            # Before a mark or the end other rules hold.
            sign = shape.add(Literal("!"), "!")
            return shape.add(Sequence((raw, sign)), shape.patterns[raw] + "!")
        case "value":
            schema, pattern = draw(
                st.sampled_from(
                    [
                        ('{"type": "integer"}', "0|-?[1-9][0-9]*"),
                        ('{"type": "boolean"}', "true|false"),
                        ('{"type": "string", "maxLength": 2}', STRING),
                    ]
                )
            )
            after = draw(st.sampled_from(["", ";", "</x>"]))
            return shape.add(Value(schema, "", after), f"(?:{pattern}){re.escape(after)}")
        case "sequence":
            inner = [draw_node(draw, shape, depth - 1) for _ in range(draw(st.integers(1, 3)))]
            return shape.add(Sequence(tuple(inner)), "".join(shape.patterns[one] for one in inner))
        case "choose":
            keys = draw(st.lists(st.sampled_from(["k", "read_", "run(", "<think>"]), min_size=1, unique=True))
            branches = [Branch(key, draw_node(draw, shape, depth - 1)) for key in keys]
            pattern = "|".join(re.escape(one.key) + shape.patterns[one.next] for one in branches)
            return shape.add(Choose(tuple(branches)), pattern)
        case "keys":
            names = draw(st.lists(st.sampled_from(["a:", "be:", "c="]), min_size=1, unique=True))
            items = [KeyItem(name, draw_node(draw, shape, depth - 1), draw(st.booleans())) for name in names]
            return shape.add(Keys(tuple(items), ", ", "}"), keys_pattern(items, shape))
        case _:
            inner, most = draw_node(draw, shape, depth - 1), draw(st.sampled_from([1, 2, None]))
            again = "*" if most is None else f"{{0,{most - 1}}}"
            pattern = f"{shape.patterns[inner]}(?:,{shape.patterns[inner]}){again}"
            return shape.add(Repeat(inner, 1, most, ","), pattern)


def keys_pattern(items: list[KeyItem], shape: Shape) -> str:
    """All orders of all subsets that have what is required."""
    orders = [
        order
        for size in range(len(items) + 1)
        for order in itertools.permutations(items, size)
        if all(item in order for item in items if item.is_required)
    ]
    texts = [", ".join(re.escape(item.key) + shape.patterns[item.value] for item in order) for order in orders]
    return "|".join(f"{text}}}" for text in texts)


@given(shapes(), st.integers(0, 10**6))
@settings(max_examples=EXAMPLES)
def test_whatever_a_program_lets_through_is_what_it_says(drawn: tuple[Shape, int], seed: int) -> None:
    shape, entry = drawn
    tokens, rng = small_tokens(), random.Random(seed)
    program = Program(tuple(shape.nodes), entry, marker_ids=(marker("<think>"),))
    fence = Fence(small_compiler().compile(program))
    closing = [one for one, text in enumerate(tokens.texts) if text in ENDINGS]
    written: list[int] = []
    for number in range(400):
        allowed = legal(fence)
        assert allowed, b"".join(tokens.spellings[one] for one in written)
        forced = fence.forced()
        assert not forced or allowed == {forced[0]}
        if eos() in allowed and (number > 60 or rng.random() < 0.3):
            break
        choices = sorted(allowed - {eos()}) or [eos()]
        hurried = [one for one in choices if one in closing]
        token_id = rng.choice(hurried if hurried and (number > 40 or rng.random() < 0.3) else choices)
        if token_id == eos():
            break
        sampled = rng.sample(sorted(allowed), min(3, len(allowed)))
        assert all(fence.clone().push(one) for one in sampled)
        assert fence.push(token_id)
        written.append(token_id)
    else:
        return
    text = b"".join(tokens.spellings[one] for one in written).decode()
    assert re.fullmatch(shape.patterns[entry], text, re.DOTALL), text
