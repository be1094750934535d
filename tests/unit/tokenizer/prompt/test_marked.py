"""A marked string is its plain text to a template, and knows afterwards where it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.errors import TemplateError
from services.tokenizer.prompt.marked import Marked, MarkedRange, holds_marks, unmark
from services.tokenizer.prompt.template import ChatTemplate

# Each name has letters of its own, so that a result shows where its characters come from.
LETTERS = {"0": "ab", "11": "xy", None: "-."}
Pieces = list[tuple[str, str | None]]
SEPARATORS = ["a", "x", "-", " ", "\n", "ab", "ax"]


@st.composite
def pieces(draw: st.DrawFn) -> Pieces:
    names = draw(st.lists(st.sampled_from(list(LETTERS)), min_size=1, max_size=4))
    return [(draw(st.text(f"{LETTERS[name]} \n", max_size=6)), name) for name in names]


def joined(parts: Pieces) -> tuple[str, Marked]:
    marked = Marked("")
    for text, name in parts:
        marked = marked + (text if name is None else Marked.of(text, name))
    return "".join(text for text, _ in parts), marked


def ranges_of(value: str, plain: str) -> tuple[MarkedRange, ...]:
    """The ranges of a written value, once it is certain that its text is ``plain``."""
    assert str.__eq__(value, plain)
    found = unmark(str(value))
    assert found is not None
    assert found[0] == plain
    for one in found[1]:
        assert set(plain[one.start : one.end]) <= {*LETTERS[one.name], " ", "\n"}
    return found[1]


def assert_all_marked(value: str, plain: str) -> None:
    ranges = ranges_of(value, plain)
    for index, char in enumerate(plain):
        names = [one.name for one in ranges if one.start <= index < one.end]
        for name, letters in LETTERS.items():
            if char in letters:
                assert names == ([] if name is None else [name])


Operation = Callable[[Any], list[str]]


@st.composite
def cuts(draw: st.DrawFn) -> Operation:
    """Operations that carry every mark."""
    low, high = draw(st.integers(-9, 9) | st.none()), draw(st.integers(-9, 9) | st.none())
    separator, count = draw(st.sampled_from([None, *SEPARATORS])), draw(st.integers(-1, 3))
    operations: list[Operation] = [
        lambda s: [s[low:high]],
        lambda s: [s.strip()],
        lambda s: [s.lstrip("\n")],
        lambda s: [s.rstrip(" a-")],
        lambda s: s.split(separator, count),
        lambda s: s.rsplit(separator, count),
        lambda s: ["<" + s],
        lambda s: [s + ">", s + s],
    ]
    return draw(st.sampled_from(operations))


@given(pieces(), st.lists(cuts(), min_size=1, max_size=3))
def test_pieces_of_marked_strings_keep_their_marks(parts: Pieces, operations: list[Operation]) -> None:
    plain, marked = joined(parts)
    assert_all_marked(marked, plain)
    plains, markeds = [plain], [marked]
    for operation in operations:
        plains = [piece for one in plains for piece in operation(one)]
        markeds = [piece for one in markeds for piece in operation(one)]
        assert len(plains) == len(markeds)
        for one, other in zip(markeds, plains, strict=True):
            assert_all_marked(one, other)


@given(pieces(), st.sampled_from(SEPARATORS), st.integers(-3, 3).filter(bool))
def test_other_operations_lose_marks_and_never_text(parts: Pieces, text: str, step: int) -> None:
    plain, marked = joined(parts)
    operations: list[Callable[[str], str]] = [
        lambda s: s.replace(text, "1"),
        lambda s: s.replace(text, "", 1),
        lambda s: s[::step],
        lambda s: s.upper(),
        lambda s: s * 2,
        lambda s: "%s|%s" % (s.title(), s),  # noqa: UP031 - a template may write it so
        lambda s: s.partition(text)[2],
        lambda s: s.removeprefix(text),
        lambda s: "".join(s.splitlines(keepends=True)),
        lambda s: f"{s:>12}",
        lambda s: s.center(9, text[0]),
    ]
    for operation in operations:
        result, expected = operation(marked), operation(plain)
        found = unmark(str(result))
        assert found is not None
        assert found[0] == expected


@given(pieces(), st.sampled_from(SEPARATORS))
def test_questions_are_answered_as_of_the_plain_text(parts: Pieces, text: str) -> None:
    plain, marked = joined(parts)
    assert marked == plain
    assert hash(marked) == hash(plain)
    questions: list[Callable[[str], object]] = [
        len,
        bool,
        list,
        lambda s: text in s,
        lambda s: (s.startswith(text), s.endswith(text)),
        lambda s: s.startswith(("x", "a")),
        lambda s: (s.find(text), s.count(text), s.isspace()),
        lambda s: [s < text, s == text, text == s],
        lambda s: s in text,
        lambda s: {s: 1}[plain],
        lambda s: s[0] if s else None,
    ]
    for question in questions:
        assert question(marked) == question(plain)


@given(pieces())
def test_ways_of_writing_keep_marks(parts: Pieces) -> None:
    plain, marked = joined(parts)
    for written in (
        f"{marked}",
        "{}".format(marked),  # noqa: UP032 - a template may write it so
        "%s" % marked,  # noqa: UP031
        "".join(map(str, [marked])),
        format(marked, ""),
    ):
        assert written == str(marked)
    joined_again = Marked.concat([str(marked), "-", str(marked)])
    assert_all_marked(joined_again, f"{plain}-{plain}")
    assert_all_marked(Marked(str(marked)), plain)


def test_empty_text_has_a_place() -> None:
    assert unmark("ab" + str(Marked.of("", "7")) + "c") == ("abc", (MarkedRange("7", 2, 2),))
    assert unmark(str(Marked.of("  ", "7").strip())) == ("", (MarkedRange("7", 0, 0),))
    assert not Marked.of("", "7")


def test_a_replacement_does_not_reach_names() -> None:
    written = str(Marked.of("12", "12")).replace("1", "3")
    assert unmark(written) == ("32", (MarkedRange("12", 0, 2),))


def test_torn_and_nested_marks_are_none() -> None:
    one = str(Marked.of("ab", "0"))
    for length in range(1, len(one)):
        assert unmark(one[:length]) is None
        assert unmark(one[length:]) is None
        assert unmark(one[:length] + one) is None
    assert unmark(str(Marked.of(one, "1"))) is None
    assert unmark(one * 2) == ("abab", (MarkedRange("0", 0, 2), MarkedRange("0", 2, 4)))
    assert unmark("plain") == ("plain", ())
    assert type(Marked.concat([one[:3], "x"])) is str


def test_texts_with_marks_are_recognised() -> None:
    assert holds_marks(["a", str(Marked.of("b", "0"))])
    assert not holds_marks(["a", "\ufdcf\ufdf0\U000e0030"])


EXPRESSIONS = [
    "{{ c }}",
    "{{ c | trim }}",
    "{{ c | string | trim }}",
    "{{ '<' ~ c ~ '>' }}",
    "{{ (c ~ ' ') | trim }}",
    "{{ ('a' + c + 'b')[1:-1] }}",
    "{{ c.split('</think>')[-1].lstrip('\\n') }}",
    "{{ (c ~ '</think>').split('</think>') | first }}",
    "{{ c.split('</think>')[0].rstrip('\\n').split('<think>')[-1] }}",
    "{{ c | replace('1', '2') }}",
    "{% macro show(x) %}{{ x }} {% endmacro %}{{ show(c) | trim }}",
    "{% macro show(x) %}[{{ x }}]{% endmacro %}{% set y = show(c) %}{{ y[1:-1].strip() }}",
    "{% set x %} {{ c }}{% endset %}{{ x | trim }}",
    "{% if c is string and c %}{{ [c, c] | join('|') }}{% endif %}",
    "{{ '%s!' | format(c) }}",
    "{{ '{}!'.format(c) }}",
    "{{ c[::-1][::-1] if c[:7] == '<think>' else c }}",
    "{% set ns = namespace(all='') %}{% for x in [c, c] %}{% set ns.all = ns.all + x %}{% endfor %}{{ ns.all }}",
]


@pytest.mark.parametrize("source", EXPRESSIONS)
@pytest.mark.parametrize("text", ["plain 1", " \n1 \n", "<think>\n1\n</think>\n\nanswer"])
def test_templates_render_marked_strings_alike(source: str, text: str) -> None:
    template = ChatTemplate(source, {})
    plain = template.render([], {"c": text}, add_generation_prompt=False)
    written = template.render([], {"c": Marked.of(text, "1")}, add_generation_prompt=False, is_marked=True)
    found = unmark(written)
    assert found is not None
    assert found[0] == plain
    if "[::-1]" not in source or not text.startswith("<think>"):
        assert found[1]
    for one in found[1]:
        assert plain[one.start : one.end] in (text, text.replace("1", "2")) or plain[one.start : one.end] in text


def test_what_a_client_spells_like_marks_stays_as_it_is() -> None:
    text = str(Marked.of("x", "1"))
    template = ChatTemplate("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(c) }}{{ m(c) ~ c }}", {})
    assert template.render([], {"c": text}, add_generation_prompt=False) == text * 3
    torn = ChatTemplate("{{ (c ~ 'x')[2:] }}", {})
    assert torn.render([], {"c": text}, add_generation_prompt=False) == text[2:] + "x"


def test_a_marked_string_as_format_is_harmless() -> None:
    template = ChatTemplate("{{ c.format(1) }}", {})
    assert template.render([], {"c": Marked.of("a{}", "0")}, add_generation_prompt=False, is_marked=True) == "a1"
    with pytest.raises(TemplateError):
        template.render([], {"c": Marked.of("{", "0")}, add_generation_prompt=False, is_marked=True)
