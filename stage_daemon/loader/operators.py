"""What a graph's operators mean: a table from the wire contract's fixed list to torch's overloads, made once.

A name from the network is only ever looked up in it, and among those that the daemon's operator allows besides.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.custom_operators import CustomOperator
from stage_daemon.errors import InvalidRequest, UnsupportedOperator
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.higher_order import run_cond, run_custom_function
from stage_daemon.loader.scalars import SCALAR_FUNCTIONS
from stage_daemon.loader.trusted_places import with_checks
from stage_daemon.loader.vocabulary import rows

OperatorKey = tuple[int, str, str]
_HIGHER_ORDER: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "cond": (run_cond, ("condition", "if_true", "if_false", "operands")),
    "custom_function": (
        run_custom_function,
        ("forward", "backward", "operands", "kept", "with_gradient", "differentiable"),
    ),
}
_allowed: dict[OperatorKey, Implementation] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """`argument_names` in schema order; the first `num_positional` of them may be given by position."""

    function: Callable[..., Any]
    argument_names: tuple[str, ...]
    num_positional: int
    num_required: int


def find_operator(operator: pb.Operator) -> Implementation:
    """Raises UnsupportedOperator for anything that is not in the table, exactly."""
    key = (operator.kind, operator.name, operator.overload)
    implementation = operator_table().get(key) or _allowed.get(key)
    if implementation is not None:
        return implementation
    if operator.kind == pb.OPERATOR_KIND_OPAQUE:
        raise UnsupportedOperator(f"operator {shown(operator.name)} is opaque: it can be planned and not run")
    name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
    if operator.kind == pb.OPERATOR_KIND_CUSTOM:
        raise UnsupportedOperator(
            f"operator {shown(name)} is a custom one that this daemon was not told to run: start it with "
            f"--custom-operators MODULE={shown(name)}, where MODULE registers it by torch.library",
            operator=name[:200],
        )
    raise UnsupportedOperator(f"operator {shown(name)} is not one that this daemon runs", operator=name[:200])


def allow_operators(operators: Iterable[CustomOperator]) -> None:
    """From now on graphs of this process may use them. Imports their modules; raises InvalidRequest where one lacks."""
    for operator in operators:
        try:
            importlib.import_module(operator.module)
        except Exception as error:
            raise InvalidRequest(
                f"--custom-operators: module {operator.module} cannot be imported where stages run: {error}"
            ) from error
        namespace, _, packet = operator.name.partition("::")
        function = getattr(getattr(getattr(torch.ops, namespace), packet, None), operator.overload, None)
        if function is None or any(argument.is_out for argument in function._schema.arguments):
            raise InvalidRequest(
                f"--custom-operators: module {operator.module} registers no operator "
                f"{operator.name}.{operator.overload} that returns its result"
            )
        key = (pb.OPERATOR_KIND_CUSTOM, operator.name, operator.overload)
        _allowed[key] = _of_schema(function, function._schema.arguments)


@cache
def operator_table() -> Mapping[OperatorKey, Implementation]:
    return dict(_entry(kind, name, overload) for kind, name, overload, _ in rows())


def _entry(kind: str, name: str, overload: str) -> tuple[OperatorKey, Implementation]:
    if kind == "aten":
        return (pb.OPERATOR_KIND_ATEN, name, overload), _aten(name, overload)
    if kind == "python":
        function, num_required, num_allowed = SCALAR_FUNCTIONS[name]
        names = tuple(f"argument_{index}" for index in range(num_allowed))
        return (pb.OPERATOR_KIND_PYTHON, name, overload), Implementation(
            function=function, argument_names=names, num_positional=num_allowed, num_required=num_required
        )
    assert kind == "higher_order", f"operators.txt: {kind} {name}"
    function, names = _HIGHER_ORDER[name]
    return (pb.OPERATOR_KIND_HIGHER_ORDER, name, overload), Implementation(
        function=function, argument_names=names, num_positional=len(names), num_required=len(names)
    )


def _aten(name: str, overload: str) -> Implementation:
    namespace, _, packet = name.partition("::")
    assert namespace == "aten", f"operators.txt: {name} is not an aten operator"
    function = getattr(getattr(torch.ops.aten, packet), overload)
    arguments = function._schema.arguments
    assert not any(argument.is_out for argument in arguments), (
        f"operators.txt: {name}.{overload} writes an argument out"
    )
    names = [argument.name for argument in arguments]
    return _of_schema(with_checks(name, function, names), arguments)


def _of_schema(function: Callable[..., Any], arguments: Sequence[Any]) -> Implementation:
    return Implementation(
        function=function,
        argument_names=tuple(argument.name for argument in arguments),
        num_positional=sum(not argument.kwarg_only for argument in arguments),
        num_required=sum(not argument.has_default_value() for argument in arguments),
    )
