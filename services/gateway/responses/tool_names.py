"""Which item a call becomes, and how errors name the tool it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fencepost.tokenizer.v1 import conversation_pb2


class ItemType(StrEnum):
    """The items that calls are."""

    FUNCTION_CALL = "function_call"
    CUSTOM_TOOL_CALL = "custom_tool_call"
    LOCAL_SHELL_CALL = "local_shell_call"


@dataclass(frozen=True, slots=True)
class ToolNames:
    """The tools of one request. ``fields`` has where the client described each of the conversation's tools."""

    fields: Sequence[str] = ()
    has_local_shell: bool = False

    def item_type(self, namespace: str | None, name: str, kind: conversation_pb2.CallKind.ValueType) -> ItemType:
        """What a call of this tool is to the client, whether or not the tool was offered."""
        if kind == conversation_pb2.CALL_KIND_CUSTOM:
            return ItemType.CUSTOM_TOOL_CALL
        if self.has_local_shell and not namespace and name == "local_shell":
            return ItemType.LOCAL_SHELL_CALL
        return ItemType.FUNCTION_CALL
