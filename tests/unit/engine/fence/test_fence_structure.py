"""Fixed text, marks, choices, keys and repetitions."""

import pytest

from services.engine.fence.allowed import Ids
from services.engine.fence.errors import FenceError
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import (
    Branch,
    Choose,
    KeyItem,
    Keys,
    Literal,
    Mark,
    Raw,
    Repeat,
    Sequence,
    Value,
)
from tests.unit.engine.fence.small_fences import (
    eos,
    fence,
    legal,
    marker,
    program,
    small_compiler,
    small_tokens,
    takes,
    write,
    write_canonically,
)

NOTHING = Sequence(())


def encode(text: str) -> list[int]:
    return small_tokens().encode(text)


def test_a_literal_is_forced_in_its_canonical_tokens_up_to_the_end() -> None:
    one = fence(Literal("self.value = path"))
    assert list(one.forced()) == [*encode("self.value = path"), eos()]
    assert one.allowed() == Ids(frozenset(encode("self.value = path")[:1]))
    write_canonically(one, "self.value = path")
    assert one.allowed() == Ids(frozenset({eos()}))
    assert one.is_finishable
    assert one.push(eos())
    assert one.region is Region.OVER


def test_other_cuts_of_a_literal_are_illegal() -> None:
    assert len(encode("self")) < 4
    assert legal(fence(Literal("self"))) == {encode("self")[0]}


def test_no_token_reaches_across_a_mark() -> None:
    one = fence(Sequence((1, 2, 1)), Literal("self"), Mark(marker("<think>")))
    assert list(one.forced()) == [*encode("self"), marker("<think>"), *encode("self"), eos()]


def test_text_that_spells_a_marker_is_the_marker() -> None:
    one = fence(Literal("a<tool_call>b"), markers=["<tool_call>"])
    assert list(one.forced()) == [*encode("a"), marker("<tool_call>"), *encode("b"), eos()]
    assert marker("<tool_call>") not in fence(Literal("a<tool_call>b")).forced()


def test_branches_share_their_beginning_and_part() -> None:
    one = fence(Choose((Branch("read_", 1), Branch("run_", 1), Branch("x", 2))), NOTHING, Literal("!"))
    assert legal(one) == {encode(key)[0] for key in ("read_", "run_", "x")}
    write_canonically(one, "x", "!")
    assert one.is_finishable


def test_branches_with_one_beginning_and_mark_stay_open_behind_it() -> None:
    one = fence(Choose((Branch("<tool_call>a", 1), Branch("<tool_call>b", 1))), NOTHING, markers=["<tool_call>"])
    assert list(one.forced()) == [marker("<tool_call>")]
    write(one, marker("<tool_call>"))
    assert legal(one) == {*encode("a"), *encode("b")}


def keys(*, any_order: bool = True, unique: bool = True) -> Fence:
    items = (KeyItem("a:", 1, True), KeyItem("b:", 1), KeyItem("c:", 1, True))
    return fence(Keys(items, ",", ".", any_order, unique), Literal("1"))


@pytest.mark.parametrize("order", ["ac", "ca", "abc", "bca", "cba", "acb"])
def test_keys_come_in_any_order(order: str) -> None:
    one = keys()
    write_canonically(one, *",".join(f"{key}:1" for key in order), ".")
    assert one.is_finishable


@pytest.mark.parametrize("text", ["a:1.", "a:1,b:1.", ".", "a:1,a", "a:1,c:1,b:1,", "a:1,,", "d"])
def test_keys_are_neither_missing_nor_twice_nor_unknown(text: str) -> None:
    assert not takes(keys(), text)


def test_keys_in_order_skip_only_optional_ones() -> None:
    one = keys(any_order=False)
    assert takes(one, "a:1,b:1,c:1.")
    assert takes(one, "a:1,c:1.")
    assert not takes(one, "b")
    assert not takes(one, "a:1,c:1,b")


def test_keys_that_are_not_unique_may_come_again() -> None:
    assert takes(keys(unique=False), "a:1,a:1,c:1,a:1.")
    assert not takes(keys(unique=False), "a:1,a:1.")


def test_no_limit_on_the_number_of_keys() -> None:
    items = tuple(KeyItem(f"k{number:03};", 1, number % 2 == 0) for number in range(120))
    one = fence(Keys(items, ",", "."), Literal("1"))
    for number in range(0, 120, 2):
        write_canonically(one, *(("," if number else "") + f"k{number:03};" + "1"))
    assert takes(one, ".")
    assert takes(one, ",k001;1,k119;1.")
    assert not takes(one, ",k000")


def test_repetitions_are_counted() -> None:
    def repeat(least: int, most: int | None) -> Fence:
        return fence(Sequence((1, 3)), Repeat(2, least, most, ","), Literal("x"), Literal("."))

    assert takes(repeat(0, 2), ".")
    assert takes(repeat(0, 2), "x,x.")
    assert not takes(repeat(0, 2), "x,x,")
    assert not takes(repeat(2, None), "x.")
    assert takes(repeat(2, None), ",".join("x" * 50) + ".")


def test_forced_tokens_go_through_repetitions_and_their_cuts() -> None:
    one = fence(Repeat(1, 40, 40), Literal("self;"))
    assert len(one.forced()) > 40
    pushed: list[int] = []
    while not one.is_finishable:
        for token_id in one.forced():
            assert token_id in legal(one)
            assert one.push(token_id)
            pushed.append(token_id)
    assert b"".join(small_tokens().texts[token_id] for token_id in pushed) == b"self;" * 40


def test_two_raw_texts_with_one_beginning_are_read_side_by_side() -> None:
    both = fence(Repeat(1, 1, 2, "a"), Raw("a", forbidden=("b",)))
    write(both, "xyza")
    assert takes(both, "axyza")
    assert both.is_finishable


def test_a_clone_goes_its_own_way() -> None:
    one = fence(Sequence((1, 2)), Value('{"type": "integer"}', after=","), Literal("x"))
    write(one, "12")
    other = one.clone()
    write(other, "3,x")
    assert other.is_finishable
    assert not one.is_finishable
    assert takes(one, "4,x")


def test_illegal_tokens_are_refused() -> None:
    assert not fence(Literal("a")).push(eos())
    assert not fence(Literal("a")).push(encode("b")[0])
    assert not fence(Raw("|")).push(eos())
    assert not fence(Value("{}")).push(encode("x")[0])


def test_markers_must_be_tokens_of_their_own() -> None:
    with pytest.raises(FenceError, match="marker 5 is not an added token"):
        small_compiler().compile(program(Mark(5)))
    with pytest.raises(FenceError, match="beyond the vocabulary"):
        small_compiler().compile(program(Mark(10**6)))


def test_inside_structure_the_answer_cannot_end() -> None:
    one = fence(Sequence((1, 2)), Literal("ab"), Raw("|"))
    assert one.is_inside
    assert one.region is Region.STRUCTURE
    write_canonically(one, "ab")
    assert (one.is_inside, one.region, one.is_finishable) == (True, Region.VALUE, False)
