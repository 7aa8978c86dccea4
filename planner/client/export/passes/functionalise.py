"""Replaces in-place operators by their functional twins where nothing else reads the storage afterwards.

It keeps numbers bitwise: the twin must give the same dtype, shape and strides, and may draw no random numbers. Writes
to parameters, buffers and constants stay as they are. What turns a tensor's own dimensions around in place, and writes
nothing, becomes a view that is read from there on.

What is written under no_grad, and has a gradient, has it afterwards as if nothing had been written: such writes stay,
and what they return is read as the tensor that they write.
"""

from __future__ import annotations

import torch
from torch import fx

from planner.client.export.effects import aliased_positions, argument_at, draws_random, mutated_positions
from planner.client.export.gradient_flow import GradientFlow
from planner.client.export.passes.fake_results import fake_result
from planner.client.export.regions import context_of
from planner.client.export.storage import StorageRoots
from planner.graph.ir import OperatorKind
from planner.graph.operators import load_vocabulary

_ATEN = torch.ops.aten
_VIEWS = {
    _ATEN.detach_.default: _ATEN.detach.default,
    _ATEN.squeeze_.default: _ATEN.squeeze.default,
    _ATEN.squeeze_.dim: _ATEN.squeeze.dim,
    _ATEN.squeeze_.dims: _ATEN.squeeze.dims,
    _ATEN.swapaxes_.default: _ATEN.swapaxes.default,
    _ATEN.swapdims_.default: _ATEN.swapdims.default,
    _ATEN.t_.default: _ATEN.t.default,
    _ATEN.transpose_.default: _ATEN.transpose.int,
    _ATEN.unsqueeze_.default: _ATEN.unsqueeze.default,
}


def functionalise(graph: fx.Graph) -> None:
    roots = StorageRoots()
    position = {node: index for index, node in enumerate(graph.nodes)}
    trained = (node for node in graph.nodes if getattr(node.meta.get("val"), "requires_grad", False))
    with_gradient = GradientFlow(roots, trained)
    for node in list(graph.nodes):
        view = _VIEWS.get(node.target)
        if view is not None:
            _read_instead(node, view, position)
        roots.add(node)
        with_gradient.add(node)
        if _is_beside_gradients(node, with_gradient):
            node.replace_all_uses_with(argument_at(node, 0))
            continue
        twin = _twin(node)
        if twin is None or not _is_free(node, roots, position) or not _gives_the_same(node, twin):
            continue
        _read_instead(node, twin, position)
        roots.own(node)


def _read_instead(node: fx.Node, twin: torch._ops.OpOverload, position: dict[fx.Node, int]) -> None:
    """Calls `twin`, and whoever read the written value later reads what that returns."""
    written = argument_at(node, 0)
    node.target = twin
    written.replace_all_uses_with(node, delete_user_cb=lambda user: position[user] > position[node])


def _is_beside_gradients(node: fx.Node, with_gradient: GradientFlow) -> bool:
    """It writes its first argument, which has a gradient, under no_grad, and returns it."""
    if mutated_positions(node) != (0,) or 0 not in aliased_positions(node):
        return False
    return argument_at(node, 0) in with_gradient and not context_of(node).grad_enabled


def _twin(node: fx.Node) -> torch._ops.OpOverload | None:
    """`add` for `add_`: what writes its first argument and nothing else, and returns it."""
    if mutated_positions(node) != (0,) or draws_random(node):
        return None
    schema = node.target._schema  # type: ignore[union-attr]
    name = schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, name, None) if schema.name.endswith("_") else None
    if packet is None:
        return None
    for overload in packet.overloads():
        twin: torch._ops.OpOverload = getattr(packet, overload)
        # `pow_` and `pow` both have a Scalar, of which one has the exponent and the other the base.
        if _arguments(twin._schema) == _arguments(schema):
            return twin if (OperatorKind.ATEN, twin._schema.name, overload) in load_vocabulary() else None
    return None


def _arguments(schema: torch.FunctionSchema) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in schema.arguments]


def _is_free(node: fx.Node, roots: StorageRoots, position: dict[fx.Node, int]) -> bool:
    """Nothing but the written value itself is read after the write, and no input or state lies under it."""
    written = argument_at(node, 0)
    owners = roots.of(written)
    if any(owner.op != "call_function" for owner in owners):
        return False
    for alias in roots.sharing(owners):
        if alias not in (node, written) and any(position[user] > position[node] for user in alias.users):
            return False
    return True


def _gives_the_same(node: fx.Node, twin: torch._ops.OpOverload) -> bool:
    written = argument_at(node, 0)
    before, after = written.meta.get("val"), fake_result(twin, node.args, node.kwargs, like=written)
    if after is None:
        return False
    same_type = after.dtype == before.dtype and after.device == before.device
    return same_type and list(after.shape) == list(before.shape) and list(after.stride()) == list(before.stride())
