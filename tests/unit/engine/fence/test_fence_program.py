import pytest

from services.engine.fence.errors import FenceError
from services.engine.fence.program import (
    Branch,
    Choose,
    Grammar,
    GrammarSyntax,
    KeyItem,
    Keys,
    Literal,
    Mark,
    Node,
    Program,
    Raw,
    Repeat,
    Sequence,
    TextTrigger,
    Trigger,
)
from services.engine.fence.validation import validate


def errors_of(*nodes: Node, entry: int = 0, trigger: Trigger | None = None) -> str:
    with pytest.raises(FenceError) as caught:
        validate(Program(nodes, entry, trigger))
    return str(caught.value)


def test_errors_name_the_place_in_the_program() -> None:
    text = Literal("a")
    assert errors_of() == "nodes: there are none"
    assert errors_of(text, entry=3) == "entry: there is no node 3"
    assert errors_of(text, Literal("")) == "nodes[1].literal.text: empty"
    assert errors_of(text, Mark(-1)) == "nodes[1].mark.token_id: negative"
    assert errors_of(Sequence((1, 7)), text) == "nodes[0].sequence.nodes[1]: there is no node 7"
    assert errors_of(Choose(())) == "nodes[0].choose.branches: there are none"
    assert errors_of(Choose((Branch("a", 9),))) == "nodes[0].choose.branches[0].next: there is no node 9"
    assert errors_of(Keys((KeyItem("a", 4),))) == "nodes[0].keys.items[0].value: there is no node 4"
    assert errors_of(Raw("x", 3, 2)) == "nodes[0].raw.max_chars: less than min_chars"
    assert errors_of(Repeat(1, 2, 1), text) == "nodes[0].repeat.max: less than min, or zero"
    assert errors_of(Grammar(GrammarSyntax.LARK, "")) == "nodes[0].grammar.text: empty"
    assert errors_of(Literal("\ud800")) == "nodes[0].literal.text: not valid Unicode text"


def test_a_key_must_not_begin_with_another() -> None:
    message = errors_of(Choose((Branch("read_all", 1), Branch("read", 1))), Literal("a"))
    assert message == "nodes[0].choose.branches: key 'read' is a prefix of 'read_all'"
    assert "prefix" in errors_of(Keys((KeyItem("a", 1), KeyItem("a", 1))), Literal("a"))


def test_nodes_do_not_contain_themselves() -> None:
    assert errors_of(Sequence((1,)), Sequence((0,))) == "nodes[1]: contains itself"
    assert "contains itself" in errors_of(Repeat(0))


def test_nodes_do_not_lie_too_deep() -> None:
    nodes = [*(Sequence((index + 1,)) for index in range(300)), Literal("a")]
    assert "deep" in errors_of(*nodes)
    validate(Program((*(Sequence((index + 1,)) for index in range(100)), Literal("a")), 0))


def test_raw_text_needs_an_end() -> None:
    assert "terminator" in errors_of(Sequence((1, 2)), Raw(), Literal("a"))
    validate(Program((Sequence((1, 2)), Raw(), Mark(3)), 0))
    validate(Program((Raw(),), 0))


def test_a_trigger_of_nothing_is_refused() -> None:
    assert errors_of(Literal("a"), trigger=Trigger("\n")) == (
        "trigger.lead_in: without a marker it must be more than whitespace"
    )


def test_a_text_trigger_that_cannot_be_is_refused() -> None:
    def error_of(one: TextTrigger, trigger: Trigger | None) -> str:
        with pytest.raises(FenceError) as caught:
            validate(Program((Literal("a"),), trigger=trigger, text_triggers=(one,)))
        return str(caught.value)

    marked = Trigger("\n[call]", 3)
    validate(Program((Literal("a"),), trigger=marked, text_triggers=(TextTrigger("[f]", 0),)))
    assert error_of(TextTrigger("[f]", 0), None) == "text_triggers[0]: there is no trigger beside it"
    assert error_of(TextTrigger("\n", 0), marked) == "text_triggers[0].text: must be more than whitespace"
    assert error_of(TextTrigger("call", 0), marked) == "text_triggers[0].text: the trigger's lead-in contains it"
    assert error_of(TextTrigger("[f]", 1), marked) == "text_triggers[0].entry: there is no node 1"


def test_what_repeats_must_write_something() -> None:
    assert errors_of(Repeat(1), Sequence(())) == "nodes[0].repeat.node: may be empty"
    assert "may be empty" in errors_of(Repeat(1), Keys(()))
    assert "may be empty" in errors_of(Repeat(1), Repeat(2, 0), Literal("a"))
