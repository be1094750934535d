"""What every protocol's request carries beside its conversation."""

from __future__ import annotations

import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services.gateway.asking import SIDE_REQUEST_CHARACTERS, Asked, ask
from services.gateway.tenants.caller import DEFAULT, Caller
from services.gateway.toolsets import Toolsets
from tests.unit.gateway.exchanges import exchange_of

SESSION = {"x-claude-code-session-id": "s"}


def conversation(text: str = "Hi", *, tools: bool = False) -> conv.Conversation:
    message = conv.Message(role=conv.ROLE_USER, parts=[conv.Part(text=conv.TextPart(text=text))])
    return conv.Conversation(messages=[message], tools=[conv.Tool(name="ls")] if tools else [])


def asked(
    headers: dict[str, str], source: conv.Conversation, caller: Caller = DEFAULT, toolsets: Toolsets | None = None
) -> Asked:
    exchange = exchange_of(b"{}", headers, caller, toolsets=toolsets)
    return ask(exchange, source, model="m", sampling=pb.Sampling(), response_id="r", cache_key="k")


def test_the_caller_decides_whose_state_it_is() -> None:
    routing = asked({}, conversation(), Caller("acme", "team", False)).generate.routing
    assert (routing.tenant, routing.cache_scope, routing.persist) == ("acme", "team", False)
    assert (routing.request_id, routing.response_id) == ("req_1", "r")
    assert not asked({}, conversation()).generate.routing.HasField("persist")


@pytest.mark.parametrize(
    ("headers", "source", "priority"),
    [
        (SESSION, conversation(), pb.PRIORITY_BACKGROUND),
        (SESSION, conversation("x" * SIDE_REQUEST_CHARACTERS), pb.PRIORITY_UNSPECIFIED),
        (SESSION, conversation(tools=True), pb.PRIORITY_UNSPECIFIED),
        ({}, conversation(), pb.PRIORITY_UNSPECIFIED),
    ],
)
def test_an_agents_small_request_without_tools_waits_for_its_work(
    headers: dict[str, str], source: conv.Conversation, priority: pb.Priority.ValueType
) -> None:
    assert asked(headers, source).generate.routing.priority == priority


def test_a_session_names_the_conversation_before_a_cache_key() -> None:
    assert asked({**SESSION, "session-id": "t"}, conversation()).replica_key == "t"
    assert asked(SESSION, conversation()).replica_key == "s"
    assert asked({}, conversation()).replica_key == "k"


def test_a_conversation_that_leaves_its_tools_out_gets_them_back_and_may_not_call_them() -> None:
    toolsets = Toolsets()
    first = asked({}, conversation(tools=True), toolsets=toolsets).generate.conversation
    later = conversation()
    later.messages.add(role=conv.ROLE_ASSISTANT).parts.add().text.text = "Hello"
    compacted = asked({}, later, toolsets=toolsets).generate.conversation
    assert list(compacted.tools) == list(first.tools)
    assert compacted.tool_choice.mode == conv.TOOL_CHOICE_MODE_NONE
    assert not first.HasField("tool_choice")
    assert not later.tools


@pytest.mark.parametrize(
    ("headers", "source", "caller"),
    [
        ({}, conversation("Another opening"), DEFAULT),
        ({"session-id": "another"}, conversation(), DEFAULT),
        ({}, conversation(), Caller("another", "default", None)),
    ],
)
def test_nobody_else_gets_them(headers: dict[str, str], source: conv.Conversation, caller: Caller) -> None:
    toolsets = Toolsets()
    asked({}, conversation(tools=True), toolsets=toolsets)
    assert not asked(headers, source, caller, toolsets).generate.conversation.tools


def test_remembered_tools_stay_within_their_bytes() -> None:
    one = conv.Conversation(tools=conversation(tools=True).tools).ByteSize()
    toolsets = Toolsets(max_bytes=2 * one)
    for session in "abca":
        asked({"session-id": session}, conversation(tools=True), toolsets=toolsets)
    kept = [
        session
        for session in "abc"
        if asked({"session-id": session}, conversation(), toolsets=toolsets).generate.conversation.tools
    ]
    assert kept == ["a", "c"]
