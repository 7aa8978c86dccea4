"""Writes out while loops whose end constants decide, step by step: a daemon runs no loop that data may keep going."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from planner.client.export.passes.fake_results import call_beside
from planner.client.export.passes.inline_body import drop_unread_bodies, inline_body, replace_call
from planner.client.export.passes.known_values import known_values
from planner.client.export.passes.unroll_scans import MAX_NODES

# Stands for what nothing says before the program runs.
_UNKNOWN: Any = object()


def unroll_while_loops(module: fx.GraphModule, constants: Mapping[str, torch.Tensor]) -> None:
    """After it no loop is left but one whose end is not known, or one too long. Bodies may hold loops.

    `constants`: the module's placeholders that stand for tensors that nothing changes, by name.
    """
    while any(_unroll(module, node, constants) for node in _loops(module)):
        pass
    drop_unread_bodies(module.graph)


def _loops(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.target is torch.ops.higher_order.while_loop]


def _unroll(module: fx.GraphModule, call: fx.Node, constants: Mapping[str, torch.Tensor]) -> bool:
    """True if the loop is written out, so that what its bodies hold is to be looked at."""
    operands: Any = call.args
    cond, body = (module.get_submodule(str(part.target)) for part in operands[:2])
    carried, more = list(operands[2]), list(operands[3])
    assert isinstance(cond, fx.GraphModule)
    assert isinstance(body, fx.GraphModule)
    known = known_values(module.graph, _given(module, constants))
    steps = _steps(cond, body, [_known(one, known) for one in carried], [_known(one, known) for one in more])
    if steps is None:
        return False
    *before, end = steps
    with module.graph.inserting_before(call):
        for values in before:
            carried = list(inline_body(module, body, [*_with_numbers(carried, values), *more], _typed_anew))
        results = _with_numbers(carried, end)
        if not before:
            # A loop that does not run returns copies.
            results = [_copied(one) for one in results]
    replace_call(call, results)
    return True


def _given(module: fx.GraphModule, constants: Mapping[str, torch.Tensor]) -> dict[fx.Node, Any]:
    placeholders = module.graph.find_nodes(op="placeholder")
    return {node: constants[node.name] for node in placeholders if node.name in constants}


def _known(operand: Any, known: Mapping[fx.Node, Any]) -> Any:
    return known.get(operand, _UNKNOWN) if isinstance(operand, fx.Node) else operand


def _steps(cond: fx.GraphModule, body: fx.GraphModule, carried: list[Any], more: list[Any]) -> list[list[Any]] | None:
    """What is known of the carried values before each step, and in the end; None where the end is not known."""
    steps = [carried]
    while len(steps) * len(body.graph.nodes) <= MAX_NODES:
        [holds] = _results(cond, [*steps[-1], *more])
        if holds is _UNKNOWN:
            return None
        if not holds:
            return steps
        steps.append(_results(body, [*steps[-1], *more]))
    return None


def _results(body: fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
    """What is known of what a body returns."""
    placeholders = body.graph.find_nodes(op="placeholder")
    values = {node: value for node, value in zip(placeholders, operands, strict=True) if value is not _UNKNOWN}
    known = known_values(body.graph, values)
    returned: Any = body.graph.output_node().args[0]
    return [_known(one, known) for one in (returned if isinstance(returned, list | tuple) else [returned])]


def _with_numbers(carried: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Numbers as themselves: nothing is left to compute of them, and sizes made of them are fixed."""
    return [value if isinstance(value, int) else one for one, value in zip(carried, values, strict=True)]


def _typed_anew(copy: fx.Node, node: fx.Node) -> None:
    """A body was traced for a number that changes from step to step; its copy is for one of them."""
    reads_tables = any("val" not in one.meta for one in copy.all_input_nodes)
    if reads_tables or isinstance(copy.target, torch._ops.HigherOrderOperator):
        # A body's table of numbers has no type here; it is refused later, by its name.
        return
    args, kwargs = fx.map_arg((copy.args, copy.kwargs), lambda one: one.meta["val"])
    copy.meta["val"] = copy.target(*args, **kwargs)  # type: ignore[operator]


def _copied(one: Any) -> Any:
    if not isinstance(one, fx.Node):
        return one
    return call_beside(one, torch.ops.aten.clone.default, one)
