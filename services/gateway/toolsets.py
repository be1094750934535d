"""The tools that a conversation has had, for requests that leave them out.

An agent that compacts its context sends the whole conversation again without tools. Templates put tools at the head of
the prompt, so nothing of what is cached would fit: the same conversation gets its tools back, and must not call them.
"""

from __future__ import annotations

from collections import OrderedDict

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway import affinity

MAX_BYTES = 64 * 2**20


class Toolsets:
    """Of the conversations that were asked last, within ``max_bytes``. A lost one costs a prefill, nothing else."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._tools_by_key: OrderedDict[tuple[str, str, str], conversation_pb2.Conversation] = OrderedDict()

    def complete(self, tenant: str, conversation_key: str, conversation: conversation_pb2.Conversation) -> None:
        """Remember the conversation's tools; or give it, in place, those it had under this key and opening."""
        if not conversation_key:
            return
        key = tenant, conversation_key, affinity.first_messages_key(conversation.messages)
        if conversation.tools:
            self._remember(key, conversation_pb2.Conversation(tools=conversation.tools))
        elif (known := self._tools_by_key.get(key)) is not None:
            conversation.tools.extend(known.tools)
            conversation.tool_choice.mode = conversation_pb2.TOOL_CHOICE_MODE_NONE

    def _remember(self, key: tuple[str, str, str], tools: conversation_pb2.Conversation) -> None:
        self._forget(key)
        self._tools_by_key[key] = tools
        self._used_bytes += tools.ByteSize()
        while self._used_bytes > self._max_bytes:
            self._forget(next(iter(self._tools_by_key)))

    def _forget(self, key: tuple[str, str, str]) -> None:
        if (tools := self._tools_by_key.pop(key, None)) is not None:
            self._used_bytes -= tools.ByteSize()
