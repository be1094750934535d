"""Whether a chat template is append-only: further messages add text behind that of the earlier ones, and change none.

Read from the template's syntax, which has to be

    statements that see no message but the first, and not whether a generation prompt follows
    {% for message in messages %} the same, and the message itself, and whether it is the first {% endfor %}
    statements that see no message but the first

so that the text is begin(first) + Σ body(message, first) + end(first). Everything that is not known to be harmless is
taken for harmful: state that outlives an iteration, a look at the neighbours, the clock, chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jinja2 import nodes

from services.tokenizer.prompt.template import parse


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MESSAGES, _PROMPT, _LOOP = "messages", "add_generation_prompt", "loop"
_HIDDEN_NAMES = _names(
    "caller cycler dict joiner kwargs lipsum namespace raise_exception range self strftime_now super varargs"
)
"""What Jinja and the template's environment provide: functions, mostly."""

_FIRST_BY_COUNTER = {"index": 1, "index0": 0}
"""``loop.index0 == 0`` says ``loop.first``."""

_FILTERS = _names(
    "abs capitalize count d default dictsort e escape first float indent int join last length list lower max min "
    "replace round safe sort string sum title tojson trim truncate upper wordcount"
)
_LAZY_FILTERS = _names("items map reject rejectattr reverse select selectattr unique")
"""They give iterators, which remember how far they were read: never to be kept in a variable."""
_READERS = _names("count first join last length list max min sort sum tojson")
"""Of the filters, those that leave nothing of an iterator."""

_TESTS = _names(
    "!= < <= == > >= boolean defined divisibleby eq equalto even false float ge greaterthan gt in integer iterable le "
    "lessthan lower lt mapping ne none number odd sequence string true undefined upper"
)
_METHODS = _names(
    "capitalize count endswith find get index isdigit items join keys lower lstrip removeprefix removesuffix replace "
    "rfind rsplit rstrip split splitlines startswith strip title upper values"
)
"""Of strings, lists and objects, which is all that templates get."""

_EXPRESSIONS = (
    nodes.Add,
    nodes.And,
    nodes.Compare,
    nodes.Concat,
    nodes.CondExpr,
    nodes.Const,
    nodes.Dict,
    nodes.Div,
    nodes.FloorDiv,
    nodes.Keyword,
    nodes.List,
    nodes.Mod,
    nodes.Mul,
    nodes.Neg,
    nodes.Not,
    nodes.Operand,
    nodes.Or,
    nodes.Pair,
    nodes.Pos,
    nodes.Slice,
    nodes.Sub,
    nodes.TemplateData,
    nodes.Tuple,
)
"""What depends on nothing but its parts."""


def why_not(source: str) -> str | None:
    """Why a template is not proven to be append-only; None where it is. Raises jinja2.TemplateSyntaxError."""
    try:
        _Proof().check(parse(source))
    except _Unproven as unproven:
        return str(unproven)
    return None


class _Unproven(Exception):
    def __init__(self, node: nodes.Node, what: str) -> None:
        super().__init__(f"line {node.lineno} of the chat template: {what}")


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a statement may look at besides options, tools and the first message."""

    sees_prompt: bool
    """Whether a generation prompt follows."""
    loop: str | None = None
    """Whose ``loop`` this is: that over the messages, or an inner one."""


_BEGIN, _END = _Scope(sees_prompt=False), _Scope(sees_prompt=True)
_BODY, _INNER = "messages", "inner"
_LOOP_BY_KIND: dict[str | None, frozenset[str]] = {
    _BODY: frozenset({"first"}),
    _INNER: _names("depth depth0 first index index0 last length nextitem previtem revindex revindex0"),
}


class _Proof:
    def __init__(self) -> None:
        self._aliases = {_MESSAGES}
        """Names of the messages."""

    def check(self, template: nodes.Template) -> None:
        """Raises _Unproven."""
        scope = _BEGIN
        for node in template.body:
            if isinstance(node, nodes.For) and self._is_messages(node.iter):
                if scope is _END:
                    raise _Unproven(node, "a second loop over the messages")
                self._check_message_loop(node)
                scope = _END
            elif scope is _BEGIN and isinstance(node, nodes.Assign) and self._is_messages(node.node):
                self._aliases.add(self._target(node.target))
            else:
                self._check_statement(node, scope)
        if scope is _BEGIN:
            raise _Unproven(template, "no loop over the messages")

    def _check_message_loop(self, node: nodes.For) -> None:
        if node.test is not None or node.recursive or node.else_:
            raise _Unproven(node, "a loop over the messages with a condition, an else or a recursion")
        self._target(node.target)
        self._check_statements(node.body, replace(_BEGIN, loop=_BODY))

    def _check_statements(self, statements: Iterable[nodes.Node], scope: _Scope) -> None:
        for node in statements:
            self._check_statement(node, scope)

    def _check_statement(self, node: nodes.Node, scope: _Scope) -> None:
        match node:
            case nodes.Output():
                self._check_all(node.nodes, scope)
            case nodes.If():
                self._check(node.test, scope)
                self._check_statements((*node.body, *node.elif_, *node.else_), scope)
            case nodes.Assign():
                self._target(node.target)
                self._check(node.node, scope)
            case nodes.AssignBlock(filter=None):
                self._target(node.target)
                self._check_statements(node.body, scope)
            case nodes.For(recursive=False):
                for target in node.target.items if isinstance(node.target, nodes.Tuple) else [node.target]:
                    self._target(target)
                outer = replace(scope, loop=None)
                self._check_iterable(node.iter, scope)
                if node.test is not None:
                    self._check(node.test, outer)
                self._check_statements(node.body, replace(scope, loop=_INNER))
                self._check_statements(node.else_, outer)
            case nodes.Scope():
                self._check_statements(node.body, scope)
            case nodes.Continue() if scope.loop is not None:
                pass
            case nodes.Break() if scope.loop == _INNER:
                pass
            case _:
                raise _Unproven(node, f"a statement that is not known to be harmless ({type(node).__name__})")

    def _check_all(self, expressions: Iterable[nodes.Node], scope: _Scope) -> None:
        for node in expressions:
            self._check(node, scope)

    def _check_iterable(self, node: nodes.Node, scope: _Scope) -> None:
        """An expression that is read here and now."""
        if not (isinstance(node, nodes.Filter) and node.name in _LAZY_FILTERS and node.node is not None):
            self._check(node, scope)
            return
        if node.name == "map" and (node.args or any(one.key not in ("attribute", "default") for one in node.kwargs)):
            raise _Unproven(node, "map with a filter")
        self._check_arguments(node, scope)
        self._check_iterable(node.node, scope)

    def _check(self, node: nodes.Node, scope: _Scope) -> None:
        """An expression."""
        match node:
            case nodes.Name():
                self._check_name(node, scope)
            case nodes.Getitem(node=value, arg=nodes.Const(value=index)) if self._is_messages(value):
                if type(index) is not int or index != 0:
                    raise _Unproven(node, f"messages[{index}]")
            case nodes.Getattr(node=nodes.Name(name="loop")):
                if node.attr not in _LOOP_BY_KIND.get(scope.loop, ()):
                    raise _Unproven(node, f"loop.{node.attr}")
            case nodes.Compare() if scope.loop == _BODY and _says_first(node):
                pass
            case nodes.Getattr():
                self._check(node.node, scope)
            case nodes.Getitem():
                self._check_all((node.node, node.arg), scope)
            case nodes.Filter():
                if node.name not in _FILTERS or node.node is None:
                    raise _Unproven(node, f"filter {node.name}")
                self._check_arguments(node, scope)
                if node.name in _READERS:
                    self._check_iterable(node.node, scope)
                else:
                    self._check(node.node, scope)
            case nodes.Test():
                if node.name not in _TESTS:
                    raise _Unproven(node, f"test {node.name}")
                self._check_arguments(node, scope)
                self._check(node.node, scope)
            case nodes.Call():
                self._check_call(node, scope)
            case _ if isinstance(node, _EXPRESSIONS):
                self._check_all(node.iter_child_nodes(), scope)
            case _:
                raise _Unproven(node, f"an expression that is not known to be harmless ({type(node).__name__})")

    def _check_name(self, node: nodes.Name, scope: _Scope) -> None:
        if node.name in self._aliases:
            raise _Unproven(node, "other messages than the first")
        if node.name == _PROMPT and not scope.sees_prompt:
            raise _Unproven(node, f"{_PROMPT} in front of the generation prompt")
        if node.ctx != "load" or node.name == _LOOP or node.name in _HIDDEN_NAMES:
            raise _Unproven(node, f"the name {node.name}")

    def _check_call(self, node: nodes.Call, scope: _Scope) -> None:
        match node.node:
            case nodes.Name(name="raise_exception"):
                pass
            case nodes.Getattr(node=value, attr=method) if method in _METHODS:
                self._check(value, scope)
            case _:
                raise _Unproven(node, "a call that is not known to be harmless")
        self._check_arguments(node, scope)

    def _check_arguments(self, node: nodes.Call | nodes.Filter | nodes.Test, scope: _Scope) -> None:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _Unproven(node, "arguments that are not written out")
        self._check_all((*node.args, *node.kwargs), scope)

    def _target(self, node: nodes.Node) -> str:
        """The variable that is set; never one that the proof knows by its name."""
        if not isinstance(node, nodes.Name) or node.name in (*self._aliases, *_HIDDEN_NAMES, _PROMPT, _LOOP):
            raise _Unproven(node, "an assignment that is not known to be harmless")
        return node.name

    def _is_messages(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name in self._aliases


def _says_first(node: nodes.Compare) -> bool:
    match node:
        case nodes.Compare(
            expr=nodes.Getattr(node=nodes.Name(name="loop"), attr=attr),
            ops=[nodes.Operand(op="eq" | "ne" | "gt", expr=nodes.Const(value=value))],
        ):
            return _FIRST_BY_COUNTER.get(attr) == value and value is not True and value is not False
        case _:
            return False
