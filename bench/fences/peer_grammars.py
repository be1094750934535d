"""The twenty tools in other grammar engines, on the same calls: llguidance, and xgrammar where it is installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np

from bench.fences.agent_tools import TOOLS, options_of
from bench.fences.timing import cpu_us, percentile
from services.engine.fence.tokens import FenceTokens

MARK = "｜DSML｜"


def measure_llguidance(tokens: FenceTokens, mark_id: int, calls: Sequence[list[int]], rounds: int) -> dict[str, float]:
    """The same tools as one grammar."""
    text = _parametric(f"<[{mark_id}]>")
    grammar = llguidance.LLMatcher.grammar_from_lark(text)
    matcher = llguidance.LLMatcher(tokens.lltokenizer, grammar, log_level=0)
    compiles: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        matcher = llguidance.LLMatcher(tokens.lltokenizer, grammar, log_level=0)
        compiles.append((time.thread_time_ns() - start) / 1e6)
    if matcher.is_error():
        raise SystemExit(matcher.get_error())
    looks: list[float] = []
    clones: list[float] = []
    row = np.zeros(tokens.num_words, np.uint32)
    for _ in range(rounds):
        for ids in calls:
            copy = matcher.deep_copy()
            for token_id in ids:
                looks.append(cpu_us(lambda copy=copy: copy.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)))
                clones.append(cpu_us(copy.deep_copy))
                if not copy.consume_token(token_id):
                    raise SystemExit(f"the grammar beside it refuses a call: {copy.get_error()}")
    return {
        "compile_20_ms": min(compiles),
        "mask_p50_us": percentile(looks, 0.5),
        "mask_p99_us": percentile(looks, 0.99),
        "clone_us": statistics.median(clones),
    }


def _parametric(mark: str) -> str:
    def quoted(text: str) -> str:
        return f" {mark} ".join(json.dumps(part, ensure_ascii=False) for part in text.split(MARK))

    lines: list[str] = []
    names: list[str] = []
    for number, (name, schema) in enumerate(TOOLS.items()):
        names.append(f"call{number}")
        required = schema["required"]
        keys = [*required, *(key for key in schema["properties"] if key not in required)]
        lines.append(
            f'call{number}: {quoted(f"<{MARK}invoke name=")} {json.dumps(json.dumps(name))} ">\\n" k{number}::0x0'
        )
        closing = quoted(f"</{MARK}invoke>\n")
        first = f"{closing} %if is_ones([0:{len(required)}])" if required else f'"\\n" {closing} %if is_zeros(_)'
        branches = [first] if required or not keys else [first, f"{closing} %if not(is_zeros(_))"]
        for bit, key in enumerate(keys):
            text, other = options_of(schema["properties"][key])
            for kind, inner in (("true", text), ("false", other)):
                if inner is None:
                    continue
                value = f"v{number}_{bit}_{kind}"
                lines.append(f"{value}: {_value(inner, kind)}")
                opening = f'<{MARK}parameter name="{key}" string="{kind}">'
                end = quoted(f"{MARK}parameter>\n").removeprefix('"" ')
                branches.append(f"{quoted(opening)} {value} {end} k{number}::set_bit({bit}) %if bit_clear({bit})")
        lines.append(f"k{number}::_: " + "\n  | ".join(branches))
    opening, closing = quoted(f"\n\n<{MARK}tool_calls>\n"), quoted(f"</{MARK}tool_calls>")
    start = f"start: {opening} ({' | '.join(names)})+ {closing}"
    return "\n".join([start, *lines, "TEXT: /(?s:.*)<\\//"])


def _value(schema: Mapping[str, Any], kind: str) -> str:
    """Up to the marker of the closing tag."""
    if kind == "false":
        options = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": True}
        return f'(%json {json.dumps({**schema, "x-guidance": options})}) "</"'
    if "enum" in schema:
        return "(" + " | ".join(json.dumps(f"{value}</") for value in schema["enum"]) + ")"
    return "TEXT"


def measure_xgrammar(tokens: FenceTokens, calls: Sequence[list[int]]) -> dict[str, float | str]:
    """One round, since it compiles for seconds; nothing where it is not installed.

    Keys in any order, as agents' models write them: then it checks neither that they come once nor that none is
    missing. Calls that it refuses are counted and left out.
    """
    if importlib.util.find_spec("xgrammar") is None:
        return {}
    xgr: Any = importlib.import_module("xgrammar")
    info = xgr.TokenizerInfo(tokens.spellings, stop_token_ids=sorted(tokens.eos_ids))
    start = time.process_time()
    compiled = xgr.GrammarCompiler(info).compile_structural_tag(_structural_tag())
    compile_ms = (time.process_time() - start) * 1e3
    row = xgr.allocate_token_bitmask(1, info.vocab_size)
    looks: list[float] = []
    clones: list[float] = []
    num_refused = 0
    for ids in calls:
        matcher = xgr.GrammarMatcher(compiled)
        for token_id in ids:
            looks.append(cpu_us(lambda matcher=matcher: matcher.fill_next_token_bitmask(row)))
            clones.append(cpu_us(matcher.fork))
            if not matcher.accept_token(token_id):
                num_refused += 1
                break
    return {
        "xgrammar_version": importlib.metadata.version("xgrammar"),
        "xgrammar_compile_20_ms": compile_ms,
        "xgrammar_mask_p50_us": percentile(looks, 0.5),
        "xgrammar_mask_p99_us": percentile(looks, 0.99),
        "xgrammar_mask_max_us": max(looks),
        "xgrammar_clone_us": statistics.median(clones),
        "xgrammar_calls_refused": num_refused,
    }


def _structural_tag() -> str:
    tags = [
        {
            "type": "tag",
            "begin": f'<{MARK}invoke name="{name}">\n',
            "content": {"type": "json_schema", "json_schema": schema, "style": "deepseek_xml", "any_order": True},
            "end": f"</{MARK}invoke>\n",
        }
        for name, schema in TOOLS.items()
    ]
    elements: list[dict[str, Any]] = [
        {"type": "const_string", "value": f"\n\n<{MARK}tool_calls>\n"},
        {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True},
        {"type": "const_string", "value": f"</{MARK}tool_calls>"},
    ]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})
