"""Conversation → prompt text, by the model's own Jinja template.

The environment is set up as transformers sets it up, so a template renders here as its authors saw it render; values
given to ``tojson`` keep their order and their characters.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.tokenizer.errors import InvalidRequestError, ModelFileError, TemplateError
from services.tokenizer.model_files import read_json_object, read_text
from services.tokenizer.prompt.marked import Marked
from services.tokenizer.prompt.tojson import tojson

RESERVED_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Template variables that a request cannot set."""

# What a template's own code can raise on a conversation that it was not written for.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template with the tokenizer's named special tokens; safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """``special_tokens`` are variables such as ``bos_token``. Raises jinja2.TemplateSyntaxError."""
        self.source = source
        self._template = _Environment().from_string(source, globals=_GLOBALS)
        self._marking_template = _MarkingEnvironment().from_string(source, globals=_GLOBALS)
        self._special_tokens = special_tokens
        self.knows_tools = "tools" in meta.find_undeclared_variables(parse(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, object],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        is_marked: bool = False,
    ) -> str:
        """The prompt's text, from messages and tools in the shape that templates expect.

        ``is_marked`` says that they hold ``Marked`` strings: marks are written, and survive macros too. Raises
        TemplateError with the template's message, and InvalidRequestError for ``options`` that the template gets from
        elsewhere.
        """
        taken = sorted(set(options) & (RESERVED_NAMES | set(self._special_tokens)))
        if taken:
            raise InvalidRequestError("conversation.template_options", f"template option {taken[0]!r} is reserved")
        variables: dict[str, object] = {
            **self._special_tokens,
            **options,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return str((self._marking_template if is_marked else self._template).render(variables))
        except _FAILURES as error:
            message = str(error) or type(error).__name__
            raise TemplateError(
                "conversation", f"the model's chat template refuses this conversation: {message}"
            ) from error


def parse(source: str) -> nodes.Template:
    """A template's syntax tree. Raises jinja2.TemplateSyntaxError."""
    return _Environment().parse(source)


def load_template(model_dir: Path) -> ChatTemplate | None:
    """The template of ``chat_template.jinja`` or ``tokenizer_config.json``; None where the model has none.

    Raises ModelFileError.
    """
    config_path = model_dir / "tokenizer_config.json"
    config = read_json_object(config_path) if config_path.exists() else {}
    path = model_dir / "chat_template.jinja"
    source: object
    if path.exists():
        source = read_text(path)
    else:
        path, source = config_path, _default_template(config.get("chat_template"))
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelFileError(f"{path}: chat_template is not a text")
    try:
        return ChatTemplate(source, _special_tokens(config))
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"{path}: line {error.lineno} of the chat template: {error.message}") from None


def _default_template(found: object) -> object:
    """A configuration holds one template, or a list of named ones."""
    if not isinstance(found, list):
        return found
    for entry in cast("list[object]", found):
        if isinstance(entry, dict):
            named = cast("dict[str, object]", entry)
            if named.get("name") == "default":
                return named.get("template")
    return None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name, value in config.items():
        text = cast("dict[str, object]", value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what training masks; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self.filters["tojson"] = tojson


class _MarkingCode(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's interface
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class _MarkingEnvironment(_Environment):
    """What macros, blocks and ``~`` put together carries the marks of its parts."""

    code_generator_class = _MarkingCode
    concat = staticmethod(Marked.concat)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


_GLOBALS: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
