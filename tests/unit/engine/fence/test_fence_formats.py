"""Formats that are enforced by patterns of our own, beside independent readings of the same rules."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.fence.formats import PATTERNS
from services.engine.fence.machine import Fence
from services.engine.fence.program import Relaxed, Value
from tests.unit.engine.fence.small_fences import eos, program, small_compiler, takes


def matches(name: str, text: str) -> bool:
    return all(re.search(pattern.removesuffix("$") + r"\Z", text) for pattern in PATTERNS[name])


def accepts(make: Callable[[], object]) -> bool:
    try:
        make()
    except ValueError:
        return False
    return True


def takes_value(schema: object, value: object) -> bool:
    fence = Fence(small_compiler().compile(program(Value(json.dumps(schema)))))
    return takes(fence, json.dumps(value), eos())


@given(st.integers(1, 9999), st.integers(0, 13), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    is_date = accepts(lambda: date(year, month, day))
    assert matches("date", f"{year:04}-{month:02}-{day:02}") == is_date


def test_the_last_of_february_is_right_in_every_year() -> None:
    leap_years = [year for year in range(1, 10_000) if matches("date", f"{year:04}-02-29")]
    assert leap_years == [year for year in range(1, 10_000) if year % 4 == 0 and (year % 100 or year % 400 == 0)]


@pytest.mark.parametrize("sign", ["+", "-"])
def test_a_leap_second_is_the_last_of_a_day_in_utc(sign: str) -> None:
    offsets = list(itertools.product(range(24), (0, 1, 29, 30, 59)))
    for local_hour, local_minute in itertools.product(range(24), (0, 1, 28, 29, 30, 58, 59)):
        for hours, minutes in offsets:
            offset = timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
            utc = datetime(2000, 1, 5, local_hour, local_minute) - offset
            text = f"{local_hour:02}:{local_minute:02}:60{sign}{hours:02}:{minutes:02}"
            assert matches("time", text) == ((utc.hour, utc.minute) == (23, 59)), text


@pytest.mark.parametrize(
    ("text", "is_time"),
    [
        ("23:59:60Z", True),
        ("23:59:60.5z", True),
        ("22:59:60Z", False),
        ("23:58:60Z", False),
        ("23:59:59.123+23:59", True),
        ("24:00:00Z", False),
        ("23:59:61Z", False),
        ("12:00:00", False),
        ("12:00:00+24:00", False),
    ],
)
def test_times_have_an_offset_and_real_seconds(text: str, is_time: bool) -> None:
    assert matches("time", text) == is_time
    assert matches("date-time", f"1998-12-31t{text}") == is_time
    assert not matches("date-time", f"1998-02-30T{text}")


@given(st.text("0123af:.", max_size=24) | st.ip_addresses(v=6).map(str))
def test_ipv6_addresses_are_those_of_the_standard_library(text: str) -> None:
    assert matches("ipv6", text) == accepts(lambda: ipaddress.IPv6Address(text))


def test_an_ipv6_address_may_embed_another_and_has_one_gap() -> None:
    for groups, has_gap, has_ipv4 in itertools.product(range(9), (True, False), (True, False)):
        for before in range(groups + 1) if has_gap else [groups]:
            parts = ["1"] * groups
            head, tail = parts[:before], [*parts[before:], *(["1.2.3.4"] if has_ipv4 else [])]
            text = ":".join(head) + "::" + ":".join(tail) if has_gap else ":".join([*head, *tail])
            assert matches("ipv6", text) == accepts(partial(ipaddress.IPv6Address, text)), text


@pytest.mark.parametrize(
    ("text", "is_email"),
    [
        ("joe.bloggs@example.com", True),
        ('"joe bloggs"@example.com', True),
        (r'"joe\"bloggs"@example.com', True),
        ("te~st@localhost", True),
        ("joe@[127.0.0.1]", True),
        ("joe@[IPv6:::1]", True),
        ("joe@[127.0.0.300]", False),
        (".joe@example.com", False),
        ("joe..bloggs@example.com", False),
        ("joe@-example.com", False),
        ("joe bloggs@example.com", False),
        ("2962", False),
    ],
)
def test_emails_are_mailboxes(text: str, is_email: bool) -> None:
    assert matches("email", text) == is_email
    assert takes_value({"type": "string", "format": "email"}, text) == is_email


def test_a_format_is_enforced_beside_whatever_else_is_said() -> None:
    assert takes_value({"type": ["string", "null"], "format": "date"}, None)
    assert takes_value({"format": "date"}, 7)
    assert not takes_value({"format": "date"}, "7")
    both = {"type": "string", "format": "email", "pattern": "^a", "maxLength": 8, "allOf": [{"minLength": 5}]}
    assert [takes_value(both, f"{text}@b") for text in ("aaa", "a", "bbb", "a" * 7)] == [True, False, False, False]
    assert takes_value({"const": {"format": "date"}}, {"format": "date"})


def test_a_format_that_is_relaxed_keeps_its_name() -> None:
    # Something the library refuses beside it: only the shape is kept.
    schema = {"type": "string", "format": "date", "pattern": "(?=x)"}
    compiled = small_compiler().compile(program(Value(json.dumps(schema))))
    assert set(compiled.relaxed) == {Relaxed("nodes[0]", "format"), Relaxed("nodes[0]", "pattern")}


@pytest.mark.parametrize(
    ("dialect", "is_known"),
    [
        ("https://json-schema.org/draft/2020-12/schema", True),
        ("http://json-schema.org/draft-07/schema#", True),
        ("http://json-schema.org/schema#", True),
        ("https://spec.openapis.org/oas/3.1/dialect/base", True),
        ("https://example.com/no-validation", False),
        (7, False),
    ],
)
def test_a_schema_in_words_of_its_own_is_free_json(dialect: object, is_known: bool) -> None:
    schema = {"$schema": dialect, "type": "integer", "minimum": 10}
    compiled = small_compiler().compile(program(Value(json.dumps(schema))))
    assert compiled.relaxed == (() if is_known else (Relaxed("nodes[0]", "$schema"),))
    assert takes_value(schema, 9) is not is_known
    assert takes_value({"$defs": {"a": schema}, "$ref": "#/$defs/a"}, 9) is not is_known
