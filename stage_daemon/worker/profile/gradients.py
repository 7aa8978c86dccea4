"""Which values of a graph have a gradient in training, and how long the backward pass through one node takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.worker.profile.distinct import value_ids
from stage_daemon.worker.profile.values import ValueTable


def values_with_gradient(graph: pb.Graph, values: ValueTable) -> frozenset[int]:
    """Trained states, and what differentiable nodes make of values with a gradient."""
    found = {state.value for state in graph.states if state.requires_grad}
    for node in graph.nodes:
        stops = node.context < len(graph.contexts) and not graph.contexts[node.context].grad_enabled
        if stops or found.isdisjoint(value_ids(node)) or _detaches(graph, node):
            continue
        found.update(value_id for value_id in node.outputs if value_id and _is_differentiable(values, value_id))
    return frozenset(found)


def _detaches(graph: pb.Graph, node: pb.Node) -> bool:
    return node.operator < len(graph.operators) and facts_of(graph.operators[node.operator].name).detaches


def _is_differentiable(values: ValueTable, value_id: int) -> bool:
    tensor = values.tensor(value_id)
    return tensor is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def backward_call(
    function: Callable[[Mapping[int, Any]], object],
    values: Mapping[int, Any],
    wanted: Iterable[int],
    states: Sequence[int],
) -> Callable[[], None]:
    """Runs a node forward once, on copies of the `wanted` values; what is returned runs it backward, any number of
    times, and adds up what comes out for `states`, as each microbatch does.

    Raises what torch raises for a node that gradients do not go through.
    """
    leaves = {value_id: values[value_id].detach().clone().requires_grad_() for value_id in wanted}
    made = [one for one in _tensors(function({**values, **leaves})) if one.requires_grad]
    given = [torch.ones_like(one) for one in made]
    totals = {value_id: torch.zeros_like(leaves[value_id]) for value_id in leaves if value_id in states}

    def call() -> None:
        gradients = torch.autograd.grad(made, list(leaves.values()), given, retain_graph=True, allow_unused=True)
        for value_id, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None and value_id in totals:
                totals[value_id].add_(gradient)

    return call


def _tensors(made: object) -> Iterable[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, (list, tuple)):
        for one in made:
            yield from _tensors(one)
