from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.markers import Markers, Split

few_letters = st.text(alphabet="ab<", max_size=12)
marker_sets = st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), min_size=1, max_size=4)


def naive_held(text: str, markers: list[str]) -> int:
    """Length of the longest suffix that is the beginning, and not the whole, of a marker."""
    lengths = [n for m in markers for n in range(1, len(m)) if text.endswith(m[:n])]
    return max(lengths, default=0)


def naive_first(text: str, markers: list[str]) -> tuple[int, str] | None:
    found = [(text.index(m), -len(m), m) for m in markers if m in text]
    return (min(found)[0], min(found)[2]) if found else None


@settings(max_examples=150, deadline=None)
@given(text=few_letters, markers=marker_sets)
def test_exactly_the_longest_possible_beginning_is_held(text: str, markers: list[str]):
    split = Markers(markers).split(text)
    first, held = naive_first(text, markers), naive_held(text, markers)
    held_from = len(text) - held
    if held and (first is None or held_from <= first[0]):
        assert split == Split(text[:held_from], None, text[held_from:])
    elif first is None:
        assert split == Split(text, None, "")
    else:
        start, marker = first
        assert split == Split(text[:start], marker, text[start + len(marker) :])


def segments(markers: Markers, parts: list[str]) -> list[str]:
    """Text and markers of a stream, alternating."""
    found = [""]
    held = ""
    for number, part in enumerate(parts):
        held += part
        while True:
            split = markers.split(held, is_final=number == len(parts) - 1)
            held = split.after
            found[-1] += split.before
            if split.marker is None:
                break
            found += [split.marker, ""]
    return found


@settings(max_examples=150, deadline=None)
@given(text=few_letters, markers=marker_sets)
def test_the_cuts_do_not_matter(text: str, markers: list[str]):
    scanner = Markers(markers)
    assert segments(scanner, [*text, ""]) == segments(scanner, [text])


def test_a_longer_marker_is_waited_for():
    markers = Markers(["\n</p>\n", "</p>"])
    assert markers.split("x\n</p>") == Split("x", None, "\n</p>")
    assert markers.split("x\n</p>\n") == Split("x", "\n</p>\n", "")
    assert markers.split("x\n</p>y") == Split("x\n", "</p>", "y")
    assert markers.split("x\n</p>", is_final=True) == Split("x\n", "</p>", "")


def test_case_is_ignored_in_ascii_only():
    markers = Markers(["<Kiss>"], ignore_case=True)
    assert markers.split("a<kISS>b") == Split("a", "<kISS>", "b")
    assert markers.split("a<\u212aiss>b").marker is None
    assert markers.split("a<KI").after == "<KI"
