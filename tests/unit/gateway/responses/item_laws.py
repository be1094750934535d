"""What every stream of output items keeps to, whatever the model does."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]

_PARTS = {"output_text": "response.output_text", "reasoning_text": "response.reasoning_text"}
_SUMMARY = "response.reasoning_summary_text"
_CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def items_of(events: list[Event]) -> list[Event]:
    """The items that a stream's events between its frame add up to. Fails where they break a law."""
    items: list[Event] = []
    position = 0
    while position < len(events):
        end = next(at for at in range(position, len(events)) if events[at]["type"] == "response.output_item.done")
        items.append(_item_of(events[position : end + 1], len(items)))
        position = end + 1
    return items


def _item_of(events: list[Event], index: int) -> Event:
    added, *between, done = events
    assert added["type"] == "response.output_item.added"
    assert {event["output_index"] for event in events} == {index}
    assert {event["item_id"] for event in between} <= {added["item"]["id"]}
    begun, item = added["item"], done["item"]
    assert (begun["id"], begun["type"], begun["status"]) == (item["id"], item["type"], "in_progress")
    assert item["status"] in ("completed", "incomplete")
    assert {event["delta"] for event in between if event["type"].endswith(".delta")} & {""} == set()
    match item["type"]:
        case "message" | "reasoning":
            assert begun["content"] == []
            _assert_parts(between, item)
        case "function_call" | "custom_tool_call":
            kind, key = _CALLS[item["type"]]
            assert {**begun, key: item[key], "status": item["status"]} == item
            assert begun[key] == ""
            *deltas, whole = between
            assert {event["type"] for event in deltas} <= {f"{kind}.delta"}
            assert (whole["type"], whole[key]) == (f"{kind}.done", "".join(event["delta"] for event in deltas))
            assert item[key] == whole[key]
        case _:
            assert between == []
            assert {**begun, "status": item["status"]} == item
    return item


def _assert_parts(between: list[Event], item: Event) -> None:
    (part,) = item["content"]
    kind = _PARTS[part["type"]]
    own = [event for event in between if "content_index" in event]
    assert {event["content_index"] for event in own} == {0}
    opened, *deltas, whole, closed = own
    assert (opened["type"], closed["type"]) == ("response.content_part.added", "response.content_part.done")
    assert {event["type"] for event in deltas} == {f"{kind}.delta"}
    assert whole["type"] == f"{kind}.done"
    assert opened["part"]["text"] == ""
    assert opened["part"]["type"] == part["type"]
    assert closed["part"] == part
    assert part["text"] == whole["text"] == "".join(event["delta"] for event in deltas) != ""
    if part["type"] == "output_text":
        assert part["logprobs"] == whole["logprobs"] == [one for event in deltas for one in event["logprobs"]]
    summary = [event for event in between if "content_index" not in event]
    if not item.get("summary"):
        assert summary == []
        return
    assert {event["summary_index"] for event in summary} == {0}
    opened, *shown, whole, closed = summary
    assert opened["type"] == "response.reasoning_summary_part.added"
    assert opened["part"] == {"type": "summary_text", "text": ""}
    assert [(event["type"], event["delta"]) for event in shown] == [
        (f"{_SUMMARY}.delta", event["delta"]) for event in deltas
    ]
    assert (whole["type"], whole["text"]) == (f"{_SUMMARY}.done", part["text"])
    assert closed["type"] == "response.reasoning_summary_part.done"
    assert [closed["part"]] == item["summary"] == [{"type": "summary_text", "text": part["text"]}]
