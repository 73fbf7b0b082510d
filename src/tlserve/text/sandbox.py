"""The Jinja environment of chat templates: what Hugging Face's offers, in a sandbox with a meter.

Jinja's own sandbox keeps a template away from Python's internals and from changing its input. The meter bounds what is
left: every loop, call, operator and filter that can take long or build something large asks it first.

Invariant: an environment does not change once it is made, so its templates may render in several threads.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tlserve.errors import TemplateRenderError
from tlserve.text import growth
from tlserve.text.filters import metered_filters
from tlserve.text.meter import MeteredContext, RenderLimits, meter_of

Clock = Callable[[], dt.datetime]

# Methods that no prompt needs and that build something large, or something that is not text.
_CLOSED_METHODS = frozenset({"encode", "expandtabs", "format_map", "fromkeys", "to_bytes", "translate"})
_LOOP, _CONCAT, _SLICE = "for", "~", "[:]"  # filters under names that no template can write


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates and serves them while they render.

    Args:
        limits: The bounds of each rendering.
        clock: Tells ``strftime_now`` the local time.
    """

    context_class = MeteredContext
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, limits: RenderLimits, clock: Clock) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_finalize,
            extensions=[loopcontrols, _GenerationTag],
        )
        self.limits = limits
        self.filters = metered_filters() | {_LOOP: _metered_loop, _CONCAT: _concat, _SLICE: _slice}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: clock().strftime(form)
        del self.globals["lipsum"]

    def program(self, tree: nodes.Template) -> jinja2.Template:
        """Compiles a parsed template, with meters where Jinja would write plain Python."""
        return self.from_string(_Metering().visit(tree))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Runs an operator once its result is known to be small enough."""
        meter = meter_of(context)
        meter.admit(growth.of_operator(meter.extent, operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063
        """Calls a macro, a function or a method of a text once its result is known to be small enough."""
        meter = meter_of(__context)
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and (growth_of := growth.METHODS.get(method.__name__)):
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            meter.admit(growth_of(meter.extent, owner, *args, **kwargs))
        result = super().call(__context, __obj, *args, **kwargs)
        meter.admit(growth.size(result))
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Closes a few more doors than Jinja does."""
        return attr not in _CLOSED_METHODS and super().is_safe_attribute(obj, attr, value)


class _GenerationTag(Extension):
    """``{% generation %}`` frames what a model learns to write; a server just writes it."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Metering(NodeTransformer):
    """Puts metered filters in the place of what Jinja compiles to plain Python."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filter(_LOOP, cast("nodes.Expr", node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filter(_CONCAT, *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _filter(_SLICE, node.node, *(nodes.Const(None) if bound is None else bound for bound in bounds))

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Const:  # noqa: N802
        """Plain text of the template passes through ``finalize`` too: in a loop it adds up."""
        return nodes.Const(node.data, lineno=node.lineno)


def _filter(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    meter = meter_of(context)
    meter.admit(len(value) if isinstance(value, str) else meter.extent(value))
    return value


@pass_context
def _metered_loop(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    meter = meter_of(context)
    for item in items:
        meter.tick()
        yield item


@pass_context
def _concat(context: Context, *values: Any) -> str:
    meter = meter_of(context)
    meter.admit(sum(map(meter.extent, values)))
    return "".join(map(str, values))


@pass_context
def _slice(context: Context, value: Any, start: Any, stop: Any, step: Any) -> Any:
    part = value[start:stop:step]
    meter_of(context).admit(growth.size(part))
    return part


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRenderError(str(message))
