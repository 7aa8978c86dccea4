"""Targets of captured calls as operator records, out of the fixed vocabulary."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from planner.client.export.effects import aliased_positions, draws_random, mutated_positions
from planner.client.export.module_paths import module_path
from planner.errors import UnsupportedModule
from planner.graph.ir import Operator, OperatorKind
from planner.graph.operators import load_vocabulary

_PYTHON: dict[Any, str] = {
    abs: "abs",
    round: "round",
    operator.abs: "abs",
    operator.add: "add",
    operator.and_: "and_",
    operator.eq: "eq",
    operator.floordiv: "floordiv",
    operator.ge: "ge",
    operator.gt: "gt",
    operator.le: "le",
    operator.lt: "lt",
    operator.mod: "mod",
    operator.mul: "mul",
    operator.ne: "ne",
    operator.neg: "neg",
    operator.not_: "not_",
    operator.or_: "or_",
    operator.pow: "pow",
    operator.sub: "sub",
    operator.truediv: "truediv",
    math.ceil: "ceil",
    math.floor: "floor",
    math.trunc: "trunc",
    torch.sym_float: "sym_float",
    torch.sym_int: "sym_int",
    torch.sym_ite: "sym_ite",
    torch.sym_max: "sym_max",
    torch.sym_min: "sym_min",
    torch.sym_not: "sym_not",
    torch.sym_sum: "sym_sum",
}


# Whose operators the vocabulary lists; those of other namespaces were registered by torch.library.
_OF_TORCH = frozenset({"aten", "prim", "prims"})

# For what torch's transforms and loops leave in a program.
_REMEDIES = {
    "_add_batch_dim": "torch.vmap is carried where no input and no buffer is written; write its function for the whole "
    "batch",
    **dict.fromkeys(
        (
            "aten::fake_quantize_per_tensor_affine.default",
            "aten::fake_quantize_per_tensor_affine.tensor_qparams",
            "aten::fake_quantize_per_channel_affine.default",
        ),
        "fake quantisation is for training: export the module before it is prepared, or with int8 weights and scales",
    ),
    "aten::embedding_renorm_.default": "build the embedding without max_norm, and scale the rows that are looked up",
    "map_impl": "a map is carried over a fixed length of up to some thousand rows; fix that dimension, or write it "
    "with torch.vmap",
    "scan": "a scan is carried over a fixed length of up to some thousand steps; fix that dimension",
    "while_loop": "a while_loop is carried where constants alone decide its end, after up to some thousand steps: a "
    "daemon runs no loop whose end depends on data; count its steps up to a fixed number, and keep the result with "
    "torch.where once it is reached",
}


def operator_of(node: fx.Node) -> Operator:
    """Raises UnsupportedModule, naming the operator and its module, for one of torch's outside the vocabulary."""
    operator = _named(node)
    if operator is not None and operator.kind is OperatorKind.CUSTOM:
        return operator
    if operator is None or (operator.kind, operator.name, operator.overload) not in load_vocabulary():
        where = module_path(node)
        name = operator.qualified_name if operator else str(getattr(node.target, "__name__", node.target))
        raise UnsupportedModule(
            f"operator {name} in "
            f"{f'module {where!r}' if where else 'the root module'}: not among the operators that a daemon runs; "
            f"{_REMEDIES.get(name, 'write that part of the forward with other operators')}",
            module_path=where,
        )
    return operator


def _named(node: fx.Node) -> Operator | None:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return Operator(
            kind=OperatorKind.ATEN if target.namespace in _OF_TORCH else OperatorKind.CUSTOM,
            name=target._schema.name,
            overload=target._overloadname,
            mutated_arguments=mutated_positions(node),
            aliased_arguments=aliased_positions(node),
            random=draws_random(node),
        )
    if isinstance(target, torch._ops.HigherOrderOperator):
        return Operator(kind=OperatorKind.HIGHER_ORDER, name=str(target._name))
    name = _PYTHON.get(target)
    return None if name is None else Operator(kind=OperatorKind.PYTHON, name=name)
