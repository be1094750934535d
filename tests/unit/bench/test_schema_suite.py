"""The report on the JSON-Schema-Test-Suite, from a suite of four groups."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.fences.schema_suite import Outcome, measure


def write(path: Path, schema: object, **validity_by_description: tuple[Any, bool]) -> None:
    tests = [
        {"description": description.replace("_", " "), "data": data, "valid": is_valid}
        for description, (data, is_valid) in validity_by_description.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"description": "a group", "schema": schema, "tests": tests}]))


def test_formats_are_measured_as_assertions_and_the_other_mode_is_named(tmp_path: Path) -> None:
    date = {"format": "date"}
    write(
        tmp_path / "format.json",
        date,
        integers_are_ignored=(12, True),
        invalid_date_string_is_only_an_annotation_by_default=("soon", True),
    )
    write(tmp_path / "optional" / "format" / "date.json", date, a_date=("2024-02-29", True), none=("2023-02-29", False))
    write(tmp_path / "optional" / "bignum.json", {"type": "integer"}, not_read=(1, False))
    write(tmp_path / "uniqueItems.json", {"uniqueItems": True}, unique=([1], True), double=([1, 1], False))
    found = measure(tmp_path).as_json()
    assert found["left_out"] == ["format: invalid date string is only an annotation by default"]
    assert found["keywords"] == {
        "format": {Outcome.PASS: 1},
        "uniqueItems": {Outcome.PASS: 1, Outcome.RELAXED: 1},
        "format/date": {Outcome.PASS: 2},
    }
    assert found["wrong"] == 0


def test_what_is_wrong_is_counted_and_shown(tmp_path: Path) -> None:
    write(tmp_path / "type.json", {"type": "integer"}, wrongly_valid=("x", True), wrongly_invalid=(1, False))
    report = measure(tmp_path)
    assert report.as_json()["wrong"] == 2
    assert report.wrong == [
        'type wrong_refused {"type": "integer"} "x"',
        'type wrong_taken {"type": "integer"} 1',
    ]


def test_nothing_is_wrong_in_the_whole_suite() -> None:
    folder = os.environ.get("FENCEPOST_SCHEMA_SUITE")
    if folder is None:
        pytest.skip("FENCEPOST_SCHEMA_SUITE names no folder of the suite")
    report = measure(Path(folder))
    assert report.wrong == []
    assert len(report.counts) > 60
