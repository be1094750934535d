"""Reads tokenizer.v1 requests into this service's own values; refuses what makes no sense."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.tokenizer.conversation import Call, Conversation, Message, OutputFormat, Role, Thought, ToolMode
from services.tokenizer.dialects.events import ToolGrammar, ToolSpec, flat_name
from services.tokenizer.dialects.json_text import split_object
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence.program import GrammarSyntax
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Priority, Routing, derive_conversation_key
from services.tokenizer.sampling import Sampling

_ROLES = {
    conversation_pb2.ROLE_SYSTEM: Role.SYSTEM,
    conversation_pb2.ROLE_DEVELOPER: Role.DEVELOPER,
    conversation_pb2.ROLE_USER: Role.USER,
    conversation_pb2.ROLE_ASSISTANT: Role.ASSISTANT,
    conversation_pb2.ROLE_TOOL: Role.TOOL,
}
_THINKING = {conversation_pb2.REASONING_MODE_OFF: False, conversation_pb2.REASONING_MODE_ON: True}
_GRAMMARS = {
    conversation_pb2.TOOL_GRAMMAR_SYNTAX_LARK: "Lark grammar",
    conversation_pb2.TOOL_GRAMMAR_SYNTAX_REGEX: "regular expression",
}
_SYNTAXES = {
    conversation_pb2.TOOL_GRAMMAR_SYNTAX_LARK: GrammarSyntax.LARK,
    conversation_pb2.TOOL_GRAMMAR_SYNTAX_REGEX: GrammarSyntax.REGEX,
}
_NO_ARGUMENTS = '{"type": "object", "properties": {}}'


def read_generation(message: tokenizer_pb2.GenerateRequest) -> GenerationRequest:
    """Raises InvalidRequestError."""
    source = read_source(message)
    sampling = read_sampling(message.sampling)
    sampling.check()
    return GenerationRequest(
        source=source,
        sampling=sampling,
        routing=read_routing(message.routing, source),
        loop_guard=_optional(message, "loop_guard"),
        warm_up_only=message.warm_up_only,
    )


def read_source(
    message: tokenizer_pb2.GenerateRequest | tokenizer_pb2.EncodeRequest | tokenizer_pb2.CountTokensRequest,
) -> Conversation | str:
    """The conversation or text of a request. Raises InvalidRequestError."""
    match message.WhichOneof("input"):
        case "conversation":
            return read_conversation(message.conversation)
        case "text":
            if not message.text:
                raise InvalidRequestError("text", "text is empty")
            return message.text
        case _:
            raise InvalidRequestError("conversation", "there is neither a conversation nor a text")


def read_routing(message: tokenizer_pb2.Routing, source: Conversation | str) -> Routing:
    """Raises InvalidRequestError."""
    if not message.tenant:
        raise InvalidRequestError("routing.tenant", "routing.tenant is empty")
    background = message.priority == tokenizer_pb2.PRIORITY_BACKGROUND
    return Routing(
        tenant=message.tenant,
        cache_scope=message.cache_scope or message.tenant,
        conversation_key=message.conversation_key or derive_conversation_key(message.tenant, source),
        request_id=message.request_id,
        response_id=message.response_id,
        priority=Priority.BACKGROUND if background else Priority.INTERACTIVE,
        persist=_optional(message, "persist"),
    )


def read_sampling(message: tokenizer_pb2.Sampling) -> Sampling:
    """As it stands, unchecked."""
    return Sampling(
        temperature=_optional(message, "temperature"),
        top_p=_optional(message, "top_p"),
        top_k=_optional(message, "top_k"),
        min_p=_optional(message, "min_p"),
        presence_penalty=_optional(message, "presence_penalty"),
        frequency_penalty=_optional(message, "frequency_penalty"),
        repetition_penalty=_optional(message, "repetition_penalty"),
        seed=_optional(message, "seed"),
        logit_bias=dict(message.logit_bias),
        logprobs=_optional(message, "logprobs"),
        stop_texts=tuple(message.stop_texts),
        stop_token_ids=tuple(message.stop_token_ids),
        max_tokens=_optional(message, "max_tokens"),
        choices=_optional(message, "choices"),
    )


def read_token_ids(data: bytes, vocabulary_size: int, max_bytes: int) -> TokenIds:
    """Raises InvalidRequestError unless ``data`` is int32 little-endian ids of the vocabulary."""
    if len(data) % 4:
        raise InvalidRequestError("token_ids", f"token_ids has {len(data)} bytes; they must be whole 4-byte ids")
    if len(data) > max_bytes:
        raise InvalidRequestError("token_ids", f"token_ids has {len(data)} bytes; at most {max_bytes} are taken")
    ids: TokenIds = np.frombuffer(data, dtype="<i4")
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary_size))
    if len(wrong):
        position = int(wrong[0])
        raise InvalidRequestError(
            "token_ids", f"token_ids[{position}] is {int(ids[position])}; ids are 0 to {vocabulary_size - 1}"
        )
    return ids


def read_conversation(message: conversation_pb2.Conversation) -> Conversation:
    """Raises InvalidRequestError."""
    if not message.messages:
        raise InvalidRequestError("conversation.messages", "the conversation has no messages")
    mode = message.reasoning.mode
    tools = _read_tools(message)
    return Conversation(
        messages=tuple(
            _read_message(one, f"conversation.messages[{index}]") for index, one in enumerate(message.messages)
        ),
        template_options=_read_template_options(message.template_options),
        tools=tools,
        tool_mode=_read_tool_mode(message.tool_choice, tools),
        allowed_names=_read_allowed_names(message.tool_choice, tools),
        parallel_calls=not message.HasField("parallel_calls") or message.parallel_calls,
        enable_thinking=_THINKING.get(mode),
        output_format=_read_output_format(message.output_format),
    )


def _read_tools(message: conversation_pb2.Conversation) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for index, tool in enumerate(message.tools):
        field = f"conversation.tools[{index}]"
        if not tool.name:
            raise InvalidRequestError(f"{field}.name", f"{field}.name is empty")
        namespace = tool.namespace or None
        name = tool.name if namespace is None else flat_name(namespace, tool.name)
        if any(name == other.name for other in tools):
            raise InvalidRequestError(f"{field}.name", f"there are two tools {name!r}")
        is_custom = tool.kind == conversation_pb2.CALL_KIND_CUSTOM
        parameters = tool.parameters_json or _NO_ARGUMENTS
        if not is_custom and split_object(parameters) is None:
            raise InvalidRequestError(f"{field}.parameters_json", f"the parameters of {name!r} are no JSON object")
        grammar = _read_grammar(tool.grammar) if is_custom else None
        tools.append(ToolSpec(name, _describe(tool), parameters, is_custom, namespace, grammar))
    return tuple(tools)


def _read_grammar(message: conversation_pb2.ToolGrammar) -> ToolGrammar | None:
    syntax = _SYNTAXES.get(message.syntax)
    return None if syntax is None or not message.text else ToolGrammar(syntax, message.text)


def _describe(tool: conversation_pb2.Tool) -> str | None:
    """The description, and the grammar of a custom tool's text, which no format has a place for."""
    description = _optional(tool, "description")
    syntax = _GRAMMARS.get(tool.grammar.syntax)
    if tool.kind != conversation_pb2.CALL_KIND_CUSTOM or syntax is None or not tool.grammar.text:
        return description
    grammar = f"The text has to match this {syntax}:\n{tool.grammar.text}"
    return f"{description}\n\n{grammar}" if description else grammar


def _read_output_format(message: conversation_pb2.OutputFormat) -> OutputFormat | None:
    match message.WhichOneof("kind"):
        case "json_object":
            return OutputFormat(None)
        case "json_schema":
            return OutputFormat(message.json_schema.schema_json or None)
        case _:
            return None


def _read_tool_mode(choice: conversation_pb2.ToolChoice, tools: Collection[ToolSpec]) -> ToolMode:
    match choice.mode:
        case conversation_pb2.TOOL_CHOICE_MODE_NONE:
            return ToolMode.NONE
        case conversation_pb2.TOOL_CHOICE_MODE_REQUIRED:
            if not tools:
                raise InvalidRequestError("conversation.tool_choice", "a call is required, and there are no tools")
            return ToolMode.REQUIRED
        case _:
            return ToolMode.AUTO


def _read_allowed_names(choice: conversation_pb2.ToolChoice, tools: Collection[ToolSpec]) -> frozenset[str] | None:
    names = {tool.name for tool in tools}
    for index, name in enumerate(choice.allowed_names):
        if name not in names:
            raise InvalidRequestError(f"conversation.tool_choice.allowed_names[{index}]", f"there is no tool {name!r}")
    return frozenset(choice.allowed_names) or None


def _read_message(message: conversation_pb2.Message, field: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequestError(f"{field}.role", f"{field}.role is unknown or absent")
    if message.calls and role is not Role.ASSISTANT:
        raise InvalidRequestError(f"{field}.calls", f"{field}: only an assistant makes calls")
    parts: list[str] = []
    is_text_only = True
    thoughts: list[Thought] = []
    for index, part in enumerate(message.parts):
        if part.WhichOneof("kind") == "reasoning":
            thoughts.append(Thought(part.reasoning.text, part.reasoning.capsule or None))
        else:
            parts.append(_read_part(part, f"{field}.parts[{index}]"))
            is_text_only = is_text_only and part.WhichOneof("kind") in ("text", "refusal")
    if thoughts and role is not Role.ASSISTANT:
        raise InvalidRequestError(f"{field}.parts", f"{field}: only an assistant thinks")
    # An answer in several parts was one text: only so is it recognised.
    separator = "" if role is Role.ASSISTANT and is_text_only else "\n"
    return Message(
        role=role,
        content=separator.join(part for part in parts if part),
        name=_optional(message, "name"),
        reasoning="\n".join(thought.text for thought in thoughts if thought.text),
        calls=tuple(_read_call(call, f"{field}.calls[{index}]") for index, call in enumerate(message.calls)),
        call_id=_optional(message, "call_id"),
        is_error=message.is_error,
        thoughts=tuple(thoughts) if any(thought.capsule for thought in thoughts) else (),
    )


def _read_call(call: conversation_pb2.Call, field: str) -> Call:
    if not call.name:
        raise InvalidRequestError(f"{field}.name", f"{field}.name is empty")
    name = flat_name(call.namespace, call.name) if call.namespace else call.name
    return Call(call.call_id, name, call.arguments, call.kind == conversation_pb2.CALL_KIND_CUSTOM)


def _read_part(part: conversation_pb2.Part, field: str) -> str:
    match part.WhichOneof("kind"):
        case "text":
            return part.text.text
        case "refusal":
            return part.refusal.text
        case "image":
            return _not_shown(part.image.media_type, "image")
        case "document":
            return _read_document(part.document)
        case _:
            raise InvalidRequestError(field, f"{field} is empty")


def _read_document(document: conversation_pb2.DocumentPart) -> str:
    if document.WhichOneof("source") != "text":
        return _not_shown(document.media_type, "document", document.title)
    return f"{document.title}\n{document.text}" if document.title else document.text


def _not_shown(media_type: str, kind: str, title: str = "") -> str:
    """In place of what is no text. Nothing of the source is in it: clients may send that in another form next time."""
    words = [word for word in (media_type, kind, title and f'"{title}"') if word]
    return f"[{' '.join(words)}, not shown: this model takes text only]"


def _read_template_options(options: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in options.items():
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                "conversation.template_options", f"template option {name!r} is not JSON: {error}"
            ) from None
    return values


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
