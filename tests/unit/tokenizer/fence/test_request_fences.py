"""From what a caller asks, and where its prompt ends, to the program that the engine gets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fencepost.engine.v1 import fence_pb2 as pb

from services.tokenizer.conversation import Call, Conversation, Message, OutputFormat, Role, ToolMode
from services.tokenizer.dialects.events import ToolGrammar, ToolSpec
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.engine_messages import write_generate
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence.fence import Fence, Fences, PromptEnd, follows_text
from services.tokenizer.fence.flat import describe, place_named
from services.tokenizer.fence.program import GrammarSyntax, Relaxed
from services.tokenizer.fence_messages import write_program
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from tests.unit.tokenizer.fence.agent_tools import TOOLS, fields, text, tool, whole

PLAIN = PromptEnd(starts_in_reasoning=False, may_think=False, follows_text=False)
THINKING = dataclasses.replace(PLAIN, starts_in_reasoning=True)
QWEN_IDS = {"<tool_call>": 7, "</tool_call>": 8, "<think>": 5, "</think>": 6, "<|im_end|>": 2}
OBJECT = OutputFormat(None)


def asked(*tools: ToolSpec, mode: ToolMode = ToolMode.AUTO, output: OutputFormat | None = None) -> Conversation:
    return Conversation((Message(Role.USER, "Hi."),), {}, tools=tools, tool_mode=mode, output_format=output)


def derived(conversation: Conversation, end: PromptEnd = PLAIN, ids: dict[str, int] = QWEN_IDS) -> Fence:
    fence = Fences(DIALECTS["chatml_json"], ids).derive(conversation, end)
    assert fence is not None
    return fence


def literals(program: pb.Program) -> list[str]:
    return [node.literal.text for node in program.nodes if node.HasField("literal")]


def test_where_nothing_is_asked_anything_goes():
    fences = Fences(DIALECTS["chatml_json"], QWEN_IDS)
    assert fences.derive(asked(), PLAIN) is None
    assert fences.derive(asked(*TOOLS, mode=ToolMode.NONE), PLAIN) is None


def test_markers_are_tokens_where_the_tokenizer_has_them():
    program = write_program(derived(asked(*TOOLS)))
    assert program.trigger == pb.Trigger(lead_in="\n", marker_id=7, bare_at_start=True)
    assert list(program.marker_ids) == [7, 8]
    spelt = write_program(derived(asked(*TOOLS), ids={}))
    assert spelt.trigger == pb.Trigger(lead_in="\n<tool_call>", bare_at_start=True)
    assert list(spelt.marker_ids) == []
    assert program.end == pb.PROGRAM_END_EOS_ONLY


def test_a_marker_inside_a_tag_splits_it():
    fence = Fences(DIALECTS["deepseek_dsml_v4"], {"｜DSML｜": 9}).derive(asked(*TOOLS), PLAIN)
    assert fence is not None
    program = write_program(fence)
    assert program.trigger == pb.Trigger(lead_in="\n\n<", marker_id=9)
    assert 'tool_calls>\n<｜DSML｜invoke name="' in literals(program)


def test_a_call_without_its_opening_tag_starts_the_program_at_an_entry_of_its_own():
    def program_of(ids: dict[str, int], mode: ToolMode = ToolMode.AUTO) -> pb.Program:
        fence = Fences(DIALECTS["qwen_xml"], ids).derive(asked(*TOOLS, mode=mode), PLAIN)
        assert fence is not None
        return write_program(fence)

    program = program_of(QWEN_IDS)
    assert program.trigger == pb.Trigger(lead_in="\n\n", marker_id=7, bare_at_start=True)
    assert [other.text for other in program.text_triggers] == [f"<function={one.name}>" for one in TOOLS]
    assert program.entry not in {other.entry for other in program.text_triggers}
    tagged = program.nodes[program.entry].sequence.nodes
    assert program.nodes[tagged[0]].literal.text == "\n<function="
    # The tools are there once.
    for branch, other in zip(program.nodes[tagged[1]].choose.branches, program.text_triggers, strict=True):
        untagged = program.nodes[other.entry].sequence.nodes
        assert program.nodes[untagged[0]].literal.text == "\n"
        inside = program.nodes[branch.next]
        assert untagged[1] == (inside.sequence.nodes[0] if inside.HasField("sequence") else branch.next)
    # Without tokens for it, what is thinking is not known where the program might start.
    assert not program_of({"<tool_call>": 7, "</tool_call>": 8}).text_triggers
    assert not program_of(QWEN_IDS, ToolMode.REQUIRED).text_triggers
    assert not write_program(derived(asked(*TOOLS))).text_triggers


def test_nodes_come_before_those_that_hold_them_and_only_once():
    program = write_program(derived(asked(*TOOLS)))
    assert program.entry == len(program.nodes) - 1
    for number, node in enumerate(program.nodes):
        inside = [
            *node.sequence.nodes,
            *(branch.next for branch in node.choose.branches),
            *(item.value for item in node.keys.items),
            *([node.repeat.node] if node.HasField("repeat") else []),
        ]
        assert all(one < number for one in inside)
    assert len({node.SerializeToString() for node in program.nodes if not node.HasField("value")}) == sum(
        not node.HasField("value") for node in program.nodes
    )


def test_equal_requests_get_the_same_fence():
    fences = Fences(DIALECTS["qwen_xml"], QWEN_IDS)
    fence = fences.derive(asked(*TOOLS), PLAIN)
    assert fence is fences.derive(asked(*(dataclasses.replace(one) for one in TOOLS)), PLAIN)
    assert fence is not fences.derive(asked(*TOOLS[1:]), PLAIN)


def test_a_prompt_that_opens_thinking_gates_the_program_by_its_token():
    program = write_program(derived(asked(*TOOLS), THINKING))
    assert program.reasoning_gate
    spelt = write_program(derived(asked(*TOOLS, mode=ToolMode.REQUIRED), THINKING, {}))
    assert not spelt.reasoning_gate
    assert [node.raw.after for node in spelt.nodes if node.HasField("raw")] == ["</think>\n\n"]


def test_the_engine_is_told_which_tokens_enclose_thinking_where_a_call_may_start():
    def told(fence: Fence) -> tuple[int, int] | None:
        request = GenerationRequest("x", Sampling(), Routing("t", "t", "k"), None, warm_up_only=False, fence=fence)
        sent = write_generate(request, np.array([1], np.int32))
        return (sent.reasoning.start_id, sent.reasoning.end_id) if sent.HasField("reasoning") else None

    for end in (PLAIN, THINKING):
        assert told(derived(asked(*TOOLS), end)) == (5, 6)
        assert told(derived(asked(*TOOLS), end, ids={})) is None
    # Calls at once: there is no free text in which thinking could open.
    assert told(derived(asked(*TOOLS, mode=ToolMode.REQUIRED))) is None
    assert told(derived(asked(*TOOLS, mode=ToolMode.REQUIRED), THINKING)) == (5, 6)


def test_a_call_without_the_programs_beginning_is_none_of_its():
    marked, spelt = derived(asked(*TOOLS)), derived(asked(*TOOLS), ids={})
    assert marked.has_begun([1, 7], "")
    assert not marked.has_begun([1, 8], "<tool_call>")
    assert spelt.has_begun([], "a\n<tool_call>")
    assert not spelt.has_begun([], "a\n<function=f>")
    assert not spelt.has_begun([], "<tool_call></think>a")
    assert derived(asked(*TOOLS, mode=ToolMode.REQUIRED)).has_begun([], "")
    for ids, is_seen in ((QWEN_IDS, True), ({"<tool_call>": 7}, False)):
        qwen = Fences(DIALECTS["qwen_xml"], ids).derive(asked(*TOOLS), PLAIN)
        assert qwen is not None
        assert qwen.has_begun([], "</think>a\n<function=Bash>") is is_seen
        assert not qwen.has_begun([], "a\n<function=unknown>")
        assert not qwen.has_begun([], "<function=Bash></think>a")


def test_only_a_call_that_text_starts_may_begin_in_thinking():
    assert derived(asked(*TOOLS)).marks_thinking
    assert derived(asked(*TOOLS, mode=ToolMode.REQUIRED), ids={}).marks_thinking
    assert not derived(asked(*TOOLS), ids={}).marks_thinking


def test_a_model_that_may_think_is_let_think_first():
    end = dataclasses.replace(PLAIN, may_think=True)
    program = write_program(derived(asked(output=OBJECT), end))
    assert not program.reasoning_gate
    assert list(program.marker_ids) == [5, 6]
    (repeat,) = [node.repeat for node in program.nodes if node.HasField("repeat")]
    assert (repeat.min, repeat.max) == (0, 1)
    assert not any(node.HasField("repeat") for node in write_program(derived(asked(output=OBJECT))).nodes)


def test_an_output_format_is_one_value():
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
    program = write_program(derived(asked(output=OutputFormat(schema))))
    assert program == pb.Program(nodes=[pb.Node(value=pb.Value(json_schema=schema))], end=pb.PROGRAM_END_EOS_ONLY)
    anything = write_program(derived(asked(*TOOLS, mode=ToolMode.NONE, output=OBJECT)))
    assert [node.value.json_schema for node in anything.nodes] == ['{"type": "object"}']
    behind = write_program(derived(asked(output=OBJECT), THINKING))
    assert behind.reasoning_gate
    assert literals(behind) == ["\n\n"]


def test_a_format_is_kept_where_text_alone_may_be_answered():
    fences = Fences(DIALECTS["chatml_json"], QWEN_IDS)
    assert fences.keeps_format(asked(output=OBJECT), PLAIN)
    assert fences.keeps_format(asked(*TOOLS, mode=ToolMode.NONE, output=OBJECT), PLAIN)
    assert fences.keeps_format(asked(*TOOLS, mode=ToolMode.REQUIRED, output=OBJECT), PLAIN)
    assert not fences.keeps_format(asked(*TOOLS, output=OBJECT), PLAIN)
    follows = dataclasses.replace(PLAIN, follows_text=True)
    assert not fences.keeps_format(asked(output=OBJECT), follows)
    assert fences.derive(asked(output=OBJECT), follows) is None


def test_calls_that_are_required_and_cannot_be_made_are_refused():
    impossible = tool("f", {"properties": {"a": False}, "required": ["a"]})
    fences = Fences(DIALECTS["chatml_json"], QWEN_IDS)
    with pytest.raises(InvalidRequestError, match="f") as caught:
        fences.derive(asked(impossible, mode=ToolMode.REQUIRED), PLAIN)
    assert caught.value.metadata == {"field": "conversation.tool_choice"}
    assert fences.derive(asked(impossible), PLAIN) is None
    (warning,) = derived(asked(impossible, TOOLS[0])).warnings
    assert warning.startswith("f cannot be called")


def test_one_call_at_a_time_where_calls_are_not_parallel():
    one = dataclasses.replace(asked(*TOOLS, mode=ToolMode.REQUIRED), parallel_calls=False)
    assert not any(node.HasField("repeat") for node in write_program(derived(one)).nodes)


def test_grammars_of_custom_tools_come_along():
    grammar = ToolGrammar(GrammarSyntax.LARK, "start: /x/")
    patch = ToolSpec("patch", None, "", is_custom=True, grammar=grammar)
    fence = Fences(DIALECTS["qwen_xml"], QWEN_IDS).derive(asked(patch), PLAIN)
    assert fence is not None
    assert [node.grammar for node in write_program(fence).nodes if node.HasField("grammar")] == [
        pb.Grammar(syntax=pb.GRAMMAR_SYNTAX_LARK, text="start: /x/")
    ]
    assert fence.warnings == ()


def test_what_the_engine_does_not_enforce_is_named_as_the_caller_knows_it():
    fence = derived(asked(tool("f", fields("a", a=whole(multipleOf=3), b=text()))))
    number = fence.program.places.index("tools.f.a")

    def named(place: str) -> str:
        return describe(place_named(Relaxed(place, "format"), fence.program.places))

    assert named(f"nodes[{number}]") == "not enforced: format of tools.f.a"
    assert named(f"nodes[{number}]/items/0") == "not enforced: format of tools.f.a/items/0"
    assert named("nodes[999]") == "not enforced: format of nodes[999]"
    assert named("tools.g.y") == "not enforced: format of tools.g.y"


def test_an_assistants_text_at_the_end_is_gone_on_with():
    def ending(message: Message) -> bool:
        return follows_text(Conversation((Message(Role.USER, "Hi."), message), {}))

    assert ending(Message(Role.ASSISTANT, "It is"))
    assert not ending(Message(Role.ASSISTANT, " "))
    assert not ending(Message(Role.ASSISTANT, "x", calls=(Call("1", "f", "{}"),)))
    assert not ending(Message(Role.USER, "It is"))
