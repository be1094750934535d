"""Which conversations a template takes as they are: found by rendering small ones, never by a model's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.errors import ServiceError
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.template import ChatTemplate
from services.tokenizer.prompt.tojson import JsonText


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """Each says that the template writes every message of such a conversation, in its order."""

    takes_system: bool = True
    takes_systems_in_a_row: bool = True
    """At the beginning."""
    takes_system_anywhere: bool = True
    takes_users_in_a_row: bool = True
    takes_assistants_in_a_row: bool = True
    takes_any_beginning: bool = True
    """Also one without a question: an answer, or nothing but a system message."""
    takes_results: bool = True
    """In a role of their own, with tools."""


def find_manners(template: ChatTemplate | DeepseekTemplate, tool: JsonText) -> Manners:
    """Costs about ten renderings. A template that hides even a plain conversation is left to itself."""

    def takes(letters: str, tools: Sequence[JsonText] | None = None) -> bool:
        return _takes(template, letters, tools)

    if not takes("uau"):
        return Manners(takes_results=template.knows_tools)
    takes_system = takes("su")
    return Manners(
        takes_system=takes_system,
        takes_systems_in_a_row=takes("ssu"),
        takes_system_anywhere=takes("susaus") and takes("uas"),
        takes_users_in_a_row=takes("uuau"),
        takes_assistants_in_a_row=takes("uaau"),
        takes_any_beginning=takes("au") and (not takes_system or (takes("s") and takes("sau"))),
        takes_results=template.knows_tools and takes("uattau", [tool]),
    )


_ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def _takes(template: ChatTemplate | DeepseekTemplate, letters: str, tools: Sequence[JsonText] | None) -> bool:
    """Whether the messages whose roles have these initials are written, each once, in this order."""
    contents = [f"probe{index}message" for index in range(len(letters))]
    messages = [_message(_ROLES[letter], content) for letter, content in zip(letters, contents, strict=True)]
    try:
        text = template.render(messages, {}, add_generation_prompt=True, tools=tools).lower()
    except ServiceError:
        return False
    places = [text.find(content) for content in contents]
    return places == sorted(places) and places[0] >= 0 and all(text.count(content) == 1 for content in contents)


def _message(role: str, content: str) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "tool":
        message |= {"name": "probe", "tool_call_id": "probe"}
    return message
