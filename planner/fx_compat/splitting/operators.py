"""What a callable of an fx graph does to its arguments, read off aten's schemas and a few tables.

An fx graph names one operator in many ways: an overload, a packet, `torch.relu_`, `torch.nn.functional.relu`, a tensor
method. All but the first are found by name; where a name has several overloads they are taken together, so an argument
counts as written or aliased if any overload writes or aliases it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from planner.fx_compat.splitting.names import (
    CONTAINER_WRITES,
    DRAWING_FUNCTIONS,
    DROPOUTS,
    METADATA,
    OPERATOR_WRITES,
    UNDECLARED_METHODS,
    UNDECLARED_VIEWS,
    VIEWS,
)
from planner.graph.operators import facts_of

# Of parameters by which a call may write although its schema says nothing.
_FLAGS = frozenset({"inplace", "running_mean"})
_RANDOM = torch.Tag.nondeterministic_seeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What is known of a callable before it is called; names and positions are of its parameters.

    `known`: whether all that it may return a view of is listed. `defaults` holds what is not passed.
    """

    parameters: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()
    written: frozenset[str] = frozenset()
    aliased: frozenset[str] = frozenset()
    draws: bool = False
    known: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether no call of it writes, draws, or returns a view, unless it is given `out`."""
        by_flag = not _FLAGS.isdisjoint(self.parameters)
        return self.known and not (self.written or self.aliased or self.draws or by_flag)

    def argument(self, node: fx.Node, name: str) -> Any:
        """What a call passes for a parameter, however; its default, or None, if nothing."""
        if name == "self" and "input" in node.kwargs:
            return node.kwargs["input"]
        if name in node.kwargs:
            return node.kwargs[name]
        position = self.parameters.index(name) if name in self.parameters else len(node.args)
        return node.args[position] if position < len(node.args) else dict(self.defaults).get(name)

    def nodes(self, node: fx.Node, names: frozenset[str]) -> tuple[fx.Node, ...]:
        """The nodes in what a call passes for these parameters."""
        passed: dict[fx.Node, None] = {}
        for name in sorted(names):
            fx.map_arg(self.argument(node, name), lambda item: passed.setdefault(item))
        return tuple(passed)


def name_of(node: fx.Node) -> str:
    """The operator's name, however the graph refers to it: "add_" for aten.add_.Tensor, torch's and tensors' add_."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name.split("::")[-1]
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def only_views(node: fx.Node) -> bool:
    """Whether a call_function or call_method looks at the shape of its argument and never at its contents."""
    if node.target is getattr:
        return True
    if node.target is operator.getitem:
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        return all(item is None or item is ... or isinstance(item, int | slice) for item in index)
    return name_of(node) in VIEWS


def signature_of(node: fx.Node) -> Signature:
    """Of a call_function or call_method. The first parameter of a method is what it is called on."""
    if node.op == "call_method":
        return _of_method(str(node.target))
    if node.target is getattr:
        return Signature(
            parameters=("self", "name"), aliased=frozenset() if node.args[1] in METADATA else frozenset({"self"})
        )
    return _of_function(node.target)


@cache
def _of_function(target: Callable[..., Any]) -> Signature:
    if isinstance(target, torch._ops.OpOverload):
        return _of_overloads((target,), target._schema.name.removeprefix("aten::"))
    name = getattr(target, "__name__", "")
    home = getattr(target, "__module__", None) or ""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return _of_overloads(_overloads(target), name)
    if home in ("_operator", "operator"):
        return _of_operator(target)
    if home.split(".")[0] == "torch":
        return _of_name(name, target)
    return _of_foreign(target, name, home)


def _of_operator(target: Callable[..., Any]) -> Signature:
    written = frozenset({"a"}) if target in OPERATOR_WRITES else frozenset()
    aliased = frozenset({"a"}) if written or target is operator.getitem else frozenset()
    return Signature(parameters=("a", "b"), written=written, aliased=aliased)


def _of_foreign(target: Callable[..., Any], name: str, home: str) -> Signature:
    """A function of no library that is known here: only its name tells, and it may return what it is given."""
    parameters, defaults = _parameters(target)
    written = frozenset(parameters[:1]) if _says_in_place(name) else frozenset()
    draws = home in ("random", "numpy.random") or home.startswith("numpy.random.")
    return Signature(
        parameters=parameters, defaults=defaults, written=written, aliased=written, draws=draws, known=False
    )


@cache
def _of_method(name: str) -> Signature:
    overloads = _aten_overloads(name)
    if overloads and name not in CONTAINER_WRITES:
        return _of_overloads(overloads, name)
    this = frozenset({"self"})
    written = this if name in CONTAINER_WRITES or _says_in_place(name) or name.startswith("__i") else frozenset()
    aliased = this if written or name in UNDECLARED_METHODS else frozenset()
    return Signature(parameters=("self",), written=written, aliased=aliased, known=bool(aliased))


def _of_name(name: str, target: Callable[..., Any]) -> Signature:
    """A function of torch: its aten namesake's schema where there is one, its own parameters where it shows them."""
    overloads = _aten_overloads(name)
    schema = _of_overloads(overloads, name) if overloads else Signature(known=False, draws=name in DRAWING_FUNCTIONS)
    parameters, defaults = _parameters(target)
    if not parameters:
        return schema
    first = frozenset(parameters[:1])
    own_parameters = frozenset(parameters)
    return Signature(
        parameters=parameters,
        defaults=defaults,
        written=(first if "self" in schema.written or _says_in_place(name) else frozenset())
        | (schema.written & own_parameters),
        aliased=(first if "self" in schema.aliased or name in DROPOUTS else frozenset())
        | (schema.aliased & own_parameters),
        draws=schema.draws or name in DRAWING_FUNCTIONS,
        known=schema.known,
    )


def _of_overloads(overloads: tuple[torch._ops.OpOverload, ...], name: str) -> Signature:
    longest = max(overloads, key=lambda overload: (not overload._schema.is_mutable, len(overload._schema.arguments)))
    first = frozenset(argument.name for argument in longest._schema.arguments[:1])
    written = frozenset(
        argument.name
        for overload in overloads
        for argument in overload._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliased = frozenset(
        argument.name
        for overload in overloads
        for argument in overload._schema.arguments
        if argument.alias_info is not None
    )
    if _says_in_place(name):
        written, aliased = written | first, aliased | first
    if facts_of(f"aten::{name}").returns == "0" or name in UNDECLARED_VIEWS or name in DROPOUTS:
        aliased |= first
    return Signature(
        parameters=tuple(argument.name for argument in longest._schema.arguments),
        defaults=tuple(
            (argument.name, argument.default_value)
            for argument in longest._schema.arguments
            if argument.has_default_value()
        ),
        written=written,
        aliased=aliased,
        draws=any(_RANDOM in overload.tags for overload in overloads),
    )


@cache
def _aten_overloads(name: str) -> tuple[torch._ops.OpOverload, ...]:
    """Those that take a tensor first, or return one: not those of lists, dicts and numbers that share the name."""
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    return tuple(overload for overload in _overloads(packet) if _is_of_tensors(overload))


def _overloads(packet: torch._ops.OpOverloadPacket) -> tuple[torch._ops.OpOverload, ...]:
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return tuple(getattr(packet, name) for name in names)


def _is_of_tensors(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    first = str(schema.arguments[0].type) if schema.arguments else ""
    if first == "List[Tensor]" and schema.name.startswith("aten::_"):
        return True
    return first in ("Tensor", "Optional[Tensor]") or any("Tensor" in str(result.type) for result in schema.returns)


@cache
def _parameters(target: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Names in order and defaults; nothing for a built-in, or a dispatcher that takes `*args, **kwargs`."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return (), ()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        return (), ()
    named = tuple(parameter.name for parameter in parameters)
    return named, tuple((item.name, item.default) for item in parameters if item.default is not item.empty)


def _says_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
