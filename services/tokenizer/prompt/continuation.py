"""A conversation whose last message is the assistant's: the model goes on with it."""

from __future__ import annotations

from dataclasses import replace

from services.tokenizer.conversation import Conversation, Role
from services.tokenizer.prompt.layout import Layout


def continued(layout: Layout, conversation: Conversation) -> Layout:
    """The prompt up to the end of what an assistant has said last, where the template shows where that is.

    Any other conversation's is as it was; so is that of an assistant who has said nothing or made calls: it says
    something new.
    """
    last = conversation.messages[-1]
    if last.role is not Role.ASSISTANT or last.calls or not last.content.strip() or not layout.turns:
        return layout
    turn = layout.turns[-1]
    if turn.message != len(conversation.messages) - 1:
        return layout
    return replace(layout, text=layout.text[: turn.end], generation_prompt="")
