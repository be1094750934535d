"""Values against schemas in a process of their own, and schemas that would end any process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from services.tokenizer.checks.schema_checker import OVER_BUDGET, SchemaChecker, Verdict, Violation

TAGS = '{"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true}}}'


def doubling(depth: int) -> str:
    """Takes 2 to the ``depth`` steps."""
    definitions: dict[str, Any] = {f"d{depth}": {"type": "string"}}
    for level in range(depth):
        definitions[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2}
    return json.dumps({"$defs": definitions, "$ref": "#/$defs/d0"})


@pytest.fixture
async def checker() -> AsyncIterator[SchemaChecker]:
    found = SchemaChecker()
    yield found
    await found.close()


async def test_what_is_broken_is_named_with_its_place(checker: SchemaChecker) -> None:
    assert await checker.check(TAGS, '{"tags": [1, 2]}') == Verdict()
    assert await checker.check(TAGS, '{"tags": [1, 1.0]}') == Verdict((Violation("uniqueItems", ("tags",)),))
    inside = '{"items": {"properties": {"at": {"format": "date"}}, "required": ["b"]}}'
    assert await checker.check(inside, '[{"b": 1}, {"at": "soon"}]') == Verdict(
        (Violation("required", (1,)), Violation("format", (1, "at")))
    )


async def test_the_first_few_violations_are_enough(checker: SchemaChecker) -> None:
    verdict = await checker.check('{"items": {"type": "string"}}', json.dumps([1] * 1_000))
    assert verdict.violations == tuple(Violation("type", (index,)) for index in range(4))


async def test_places_have_an_end_however_long_the_keys_and_deep_the_value(checker: SchemaChecker) -> None:
    tree = '{"$defs": {"t": {"type": "object", "additionalProperties": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}'
    value: Any = 1
    for _ in range(100):
        value = {"k" * 10_000: value}
    verdict = await checker.check(tree, json.dumps(value))
    assert verdict == Verdict((Violation("type", ("k" * 100,) * 32),))


async def test_the_draft_that_a_schema_names_decides(checker: SchemaChecker) -> None:
    pair = '"items": [{"type": "string"}]}'
    draft_7 = '{"$schema": "http://json-schema.org/draft-07/schema#", ' + pair
    assert await checker.check(draft_7, "[1]") == Verdict((Violation("type", (0,)),))
    assert (await checker.check("{" + pair, "[1]")).fault is not None


@pytest.mark.parametrize(
    "schema",
    [
        "nonsense",
        "[1]",
        '{"type": "String"}',
        '{"pattern": "(("}',
        '{"pattern": "((a{1,1000}){1,1000}){1,1000}"}',
        '{"$ref": "#/nowhere"}',
        '{"$schema": "https://example.com/my-own"}',
        '{"$ref": "file:///etc/passwd"}',
        '{"const": "\\ud800"}',
        '{"not": ' * 3_000 + "{}" + "}" * 3_000,
        '{"pattern": "^(?=x)(x|xx)+(?<!b)$"}',
    ],
)
async def test_a_schema_that_cannot_be_used_is_a_fault(checker: SchemaChecker, schema: str) -> None:
    assert (await checker.check(schema, json.dumps("x" * 5_000 + "b"))).fault
    assert await checker.check(TAGS, "{}") == Verdict()


@pytest.mark.parametrize("value", ["", "{", '{"a": 1} x', "[" * 100_000])
async def test_what_is_no_json_is_a_fault(checker: SchemaChecker, value: str) -> None:
    assert (await checker.check(TAGS, value)).fault


async def test_references_that_turn_in_circles_end(checker: SchemaChecker) -> None:
    assert await checker.check('{"$ref": "#"}', "1") == Verdict()
    assert await checker.check('{"allOf": [{"$ref": "#"}]}', "1") == Verdict()


async def test_a_regex_that_backtracks_elsewhere_is_checked(checker: SchemaChecker) -> None:
    verdict = await checker.check('{"pattern": "^(a+)+$"}', json.dumps("a" * 100_000 + "b"))
    assert verdict == Verdict((Violation("pattern", ()),))


async def test_a_schema_beyond_the_budget_costs_its_process_once() -> None:
    checker = SchemaChecker(budget_s=0.05)
    try:
        assert await checker.check(doubling(34), "1") == Verdict(fault=OVER_BUDGET)
        # Its successor is there, and is not lost to the same schema.
        assert await checker.check(TAGS, "{}") == Verdict()
        process = checker._process
        assert await checker.check(doubling(34), "1") == Verdict(fault=OVER_BUDGET)
        assert checker._process is process
        assert await checker.check(TAGS, "{}") == Verdict()
    finally:
        await checker.close()


async def test_what_is_too_long_is_not_even_asked(checker: SchemaChecker) -> None:
    assert await checker.check(TAGS, " " * (4 << 20)) == Verdict(fault=OVER_BUDGET)
    assert checker._process is None


async def test_checks_at_once_get_their_own_verdicts(checker: SchemaChecker) -> None:
    schemas = [json.dumps({"const": number}) for number in range(20)]
    verdicts = await asyncio.gather(*(checker.check(schema, "7") for schema in schemas))
    assert [not verdict.violations for verdict in verdicts] == [number == 7 for number in range(20)]


async def test_a_check_that_is_left_does_not_answer_the_next_one(checker: SchemaChecker) -> None:
    await checker.check(TAGS, "{}")
    left = asyncio.create_task(checker.check('{"type": "string"}', "1"))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await checker.check(TAGS, "{}") == Verdict()


async def test_nothing_is_fetched(checker: SchemaChecker) -> None:
    asked: list[str] = []

    class Schemas(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

    with HTTPServer(("127.0.0.1", 0), Schemas) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        url = f"http://127.0.0.1:{server.server_port}/schema"
        for schema in ({"$ref": url}, {"$schema": url}, {"$id": url, "$ref": "other#/x"}, {"$dynamicRef": f"{url}#x"}):
            assert (await checker.check(json.dumps(schema), "1")).fault
        server.shutdown()
        serving.join()
    assert asked == []
