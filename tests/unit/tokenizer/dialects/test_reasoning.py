import pytest

from services.tokenizer.dialects.reasoning import ReasoningStage, ThinkTags

TAGS = ThinkTags("<think>\n", "\n</think>\n\n")
TOOL = "<tool_call>\n{"


def separate(text: str, *, starts_in_reasoning: bool = False) -> tuple[str, str]:
    """Reasoning and answer of a text, checked to be the same letter by letter."""
    results: list[tuple[str, str]] = []
    for parts in ([text], list(text)):
        stage = ReasoningStage(TAGS, (TOOL,), starts_in_reasoning=starts_in_reasoning)
        separated = [*map(stage.push, parts), stage.finish()]
        results.append(("".join(one.reasoning for one in separated), "".join(one.answer for one in separated)))
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", ("Hm.", "Yes.")),
        ("<think>Hm.</think>Yes.", ("Hm.", "Yes.")),
        ("\n<think>\nHm.\n\n</think>\n\n\nYes.", ("Hm.\n", "\nYes.")),
        ("<think>\n\n</think>\n\nYes.", ("", "Yes.")),
        ("<think>Hm. </thin", ("Hm. </thin", "")),
        ("Yes. <think>no</think>", ("", "Yes. <think>no</think>")),
        ("  Yes.", ("", "  Yes.")),
        ("  <thi", ("", "  <thi")),
        ("", ("", "")),
    ],
)
def test_thinking_is_separated_where_the_answer_begins_with_it(text: str, expected: tuple[str, str]):
    assert separate(text) == expected


def test_a_prompt_may_have_opened_the_thinking():
    assert separate("Hm.\n</think>\n\nYes.", starts_in_reasoning=True) == ("Hm.", "Yes.")
    assert separate("<think>\nHm.</think>Yes.", starts_in_reasoning=True) == ("Hm.", "Yes.")
    assert separate("Hm.", starts_in_reasoning=True) == ("Hm.", "")


def test_a_call_ends_unclosed_thinking_and_a_mention_of_its_tag_does_not():
    assert separate(f'Hm.{TOOL}"name"', starts_in_reasoning=True) == ("Hm.", f'{TOOL}"name"')
    thought = "I could use <tool_call> and </tool_call>"
    assert separate(f"{thought}</think>Yes.", starts_in_reasoning=True) == (thought, "Yes.")


def test_thinking_is_passed_on_at_once():
    stage = ReasoningStage(TAGS, (TOOL,), starts_in_reasoning=True)
    assert stage.push("Hm, </").reasoning == "Hm, "
    assert stage.push("x").reasoning == "</x"
    assert stage.push("\n").reasoning == ""
    assert not stage.is_over
    assert stage.push("</think>y").reasoning == ""
