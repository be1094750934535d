"""Conversation → messages in the shape that templates take, whatever a template refuses or drops.

Where its manners say so,

- a system message inside the conversation becomes a reminder in the user's turn: at the end of what the user or a tool
  has said just before, or else at the beginning of what follows;
- system messages at the beginning become one, or the beginning of the first question;
- neighbours of one role become one message (the user's), or get an empty question between them (the assistant's, of
  which the answer that is asked for is one);
- a conversation that begins with an answer, or has no question, gets an empty one in front.

Whatever is joined stands between the same two answers. So what has been answered once stays as it is when more follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import CallText, ResultText
from services.tokenizer.prompt.manners import Manners

Mark = Callable[[str, str], str]
"""A text, with the name of what it belongs to."""

TOOLS = "t"
"""The name of tool definitions; messages are named by their index."""

_SYSTEM_ROLES = (Role.SYSTEM, Role.DEVELOPER)
_ASKING = ("user", "tool")
_FAILED = "[the call failed]"
"""The result of a call that failed without a word."""

TemplateMessage = dict[str, Any]


class MessageWriter:
    """One model's; immutable."""

    def __init__(self, dialect: Dialect, manners: Manners) -> None:
        self._dialect = dialect
        self._manners = manners

    def write(self, conversation: Conversation, mark: Mark, *, with_instructions: bool) -> list[TemplateMessage]:
        """All messages; instructions for tools come with the first ones."""
        num_leading = _num_leading(conversation)
        leading: list[TemplateMessage] = []
        for index, message in enumerate(conversation.messages[:num_leading]):
            leading.append(self._message(message, mark, str(index)))
        if with_instructions:
            instructions = mark(self._dialect.write_tools(conversation.tools), TOOLS)
            if leading:
                leading[0]["content"] = leading[0]["content"] + "\n\n" + instructions
            else:
                leading.append({"role": "system", "content": instructions})
        if len(leading) > 1 and not (self._manners.takes_systems_in_a_row and self._manners.takes_system):
            leading = [{**leading[0], "content": _joined([one["content"] for one in leading])}]
        following = self._run(conversation, mark, num_leading)
        if leading and not self._manners.takes_system:
            following, leading = _with_beginning(leading[0]["content"], following), []
        if not self._manners.takes_any_beginning and (not following or following[0]["role"] != "user"):
            following.insert(0, _empty_question())
        return [*leading, *self._polite(following)]

    def further(self, conversation: Conversation, mark: Mark, start: int) -> list[TemplateMessage] | None:
        """The messages from ``start`` on, which is not 0; None where ``write`` may join them with those before."""
        before, first = conversation.messages[start - 1], conversation.messages[start]
        is_joined = before.role is not Role.ASSISTANT and first.role is not Role.ASSISTANT
        if start <= _num_leading(conversation) or (is_joined and self._may_join(before, first)):
            return None
        if before.role is Role.ASSISTANT and not self._manners.takes_assistants_in_a_row:
            return None
        return self._polite(self._run(conversation, mark, start))

    def _may_join(self, before: Message, first: Message) -> bool:
        has_system = before.role in _SYSTEM_ROLES or first.role in _SYSTEM_ROLES
        has_results = before.role is first.role is Role.TOOL
        return (
            (has_system and not self._manners.takes_system_anywhere)
            or (has_results and not self._manners.takes_results)
            or not self._manners.takes_users_in_a_row
        )

    def _run(self, conversation: Conversation, mark: Mark, start: int) -> list[TemplateMessage]:
        """Messages behind the leading ones."""
        messages: list[TemplateMessage] = []
        results: list[ResultText] = []
        reminders: list[str] = []
        for index, message in enumerate(conversation.messages[start:], start):
            name = str(index)
            if message.role is Role.TOOL and not self._manners.takes_results:
                results.append(ResultText(message.name, _result(message), message.is_error))
                following = conversation.messages[index + 1 : index + 2]
                if following and following[0].role is Role.TOOL:
                    continue
                written: TemplateMessage = {"role": "user", "content": mark(self._dialect.write_results(results), name)}
                results = []
            elif message.role in _SYSTEM_ROLES and not self._manners.takes_system_anywhere:
                reminders += [mark(_reminder(message.content), name)] if message.content else []
                if messages and messages[-1]["role"] in _ASKING:
                    messages[-1]["content"] = _joined([messages[-1]["content"], *reminders])
                    reminders = []
                continue
            else:
                written = self._message(message, mark, name)
            if reminders:
                if written["role"] in _ASKING:
                    written["content"] = _joined([*reminders, written["content"]])
                else:
                    messages.append({"role": "user", "content": _joined(reminders)})
                reminders = []
            messages.append(written)
        if reminders:
            messages.append({"role": "user", "content": _joined(reminders)})
        return messages

    def _polite(self, messages: list[TemplateMessage]) -> list[TemplateMessage]:
        """Without neighbours that the template does not take."""
        written: list[TemplateMessage] = []
        for message in messages:
            roles = (written[-1]["role"] if written else "", message["role"])
            if roles == ("user", "user") and not self._manners.takes_users_in_a_row:
                written[-1] = {**written[-1], "content": _joined([written[-1]["content"], message["content"]])}
                continue
            if roles == ("assistant", "assistant") and not self._manners.takes_assistants_in_a_row:
                written.append(_empty_question())
            written.append(message)
        if written and written[-1]["role"] == "assistant" and not self._manners.takes_assistants_in_a_row:
            written.append(_empty_question())
        return written

    def _message(self, message: Message, mark: Mark, name: str) -> TemplateMessage:
        role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
        content = _result(message) if role is Role.TOOL else message.content
        if message.calls:
            calls = [CallText(call.name, call.arguments, call.is_custom) for call in message.calls]
            content = self._dialect.write_calls(content, calls)
        written: TemplateMessage = {"role": role.value, "content": mark(content, name)}
        if message.reasoning:
            written["reasoning_content"] = mark(message.reasoning, name)
        if message.name is not None:
            written["name"] = message.name
        if message.call_id is not None:
            written["tool_call_id"] = message.call_id
        if message.calls:
            # Only encoders look at it: no chat template knows the name.
            written["call_ids"] = [call.call_id for call in message.calls]
        return written


def _num_leading(conversation: Conversation) -> int:
    """System messages at the beginning."""
    others = (index for index, one in enumerate(conversation.messages) if one.role not in _SYSTEM_ROLES)
    return next(others, len(conversation.messages))


def _with_beginning(text: str, messages: list[TemplateMessage]) -> list[TemplateMessage]:
    if messages and messages[0]["role"] == "user":
        return [{**messages[0], "content": _joined([text, messages[0]["content"]])}, *messages[1:]]
    return [{"role": "user", "content": text}, *messages]


def _empty_question() -> TemplateMessage:
    return {"role": "user", "content": ""}


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def _result(message: Message) -> str:
    return _FAILED if message.is_error and not message.content else message.content


def _joined(texts: list[str]) -> str:
    """One text with an empty line between those that are not empty; marks stay where they are."""
    joined, *others = [text for text in texts if text] or texts[:1]
    for text in others:
        joined = joined + "\n\n" + text
    return joined
