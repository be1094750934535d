"""Values of an answer to be held against the schemas they were asked for, and what is to be said of them then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.tokenizer.checks.schema_checker import Verdict, Violation
from services.tokenizer.conversation import Call, Conversation
from services.tokenizer.fence.output import PLACE as OUTPUT_PLACE
from services.tokenizer.fence.program import Relaxed

_MAX_PATH_CHARS = 100


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """A whole value that the model wrote, as JSON text."""

    name: str
    """For people: which of the answer's values."""
    place: str
    """What it stands for: ``tools.search``."""
    schema: str
    text: str


def values_to_check(
    source: Conversation,
    relaxed: Iterable[Relaxed],
    calls: Mapping[int, Call],
    output: str | None,
    *,
    is_fenced: bool = True,
) -> list[WrittenValue]:
    """The values of which something was ``relaxed``; without a fence, all. ``output``: an answer that is to have the
    output format.

    Texts of custom tools have grammars, which nothing but a fence can check.
    """
    places = {one.place for one in relaxed}
    schema_by_name = {tool.name: tool.parameters_json for tool in source.tools if not tool.is_custom}
    found: list[WrittenValue] = []
    for index, call in sorted(calls.items()):
        place = f"tools.{call.name}"
        if call.name in schema_by_name and (not is_fenced or _is_inside(places, place)):
            found.append(WrittenValue(f"call {index}", place, schema_by_name[call.name], call.arguments or "{}"))
    output_schema = None if source.output_format is None else source.output_format.schema_json
    if output is not None and output_schema is not None and _is_inside(places, OUTPUT_PLACE):
        found.append(WrittenValue("the answer", OUTPUT_PLACE, output_schema, output))
    return found


def describe_verdict(value: WrittenValue, verdict: Verdict) -> list[str]:
    """Warnings: keywords and places, nothing else of what was written."""
    if verdict.fault is not None:
        return [f"{value.name} is not checked against the schema of {value.place}: {verdict.fault}"]
    return [f"{value.name} is not valid: {_place(value, one)}" for one in verdict.violations]


def _place(value: WrittenValue, violation: Violation) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in violation.path)
    # Keys may be the model's own, of any length.
    path = path if len(path) <= _MAX_PATH_CHARS else f"{path[:_MAX_PATH_CHARS]}…"
    return f"{violation.keyword} of {value.place}{path}"


def _is_inside(places: Iterable[str], whole: str) -> bool:
    return any(place == whole or place.startswith((f"{whole}.", f"{whole}/")) for place in places)
