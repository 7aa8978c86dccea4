"""Which values of a graph have a gradient in training; and the backward pass through one node, whole and in two, with
what is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.vocabulary import facts_of
from stage_daemon.worker.profile.distinct import value_ids
from stage_daemon.worker.profile.values import ValueTable

# Bytes by address.
Memory = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What is kept for a node's backward pass: whether the memory of what the node reads, states aside, and of what it
    returns; and bytes besides, which the call made within."""

    inputs: bool
    outputs: bool
    within_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardSeconds:
    """Of one node, or as factors: its whole backward pass, and that in two, for what it is given and for weights."""

    whole: float
    input_gradients: float
    weight_gradients: float

    def times(self, longer: BackwardSeconds) -> BackwardSeconds:
        """Each of the three as many times as long."""
        return BackwardSeconds(
            whole=self.whole * longer.whole,
            input_gradients=self.input_gradients * longer.input_gradients,
            weight_gradients=self.weight_gradients * longer.weight_gradients,
        )


def values_with_gradient(graph: pb.Graph, values: ValueTable) -> Mapping[int, bool]:
    """Trained states, and what differentiable nodes make of values with a gradient: of each whether it is of weights
    alone, whatever the graph is given."""
    of_inputs = {entry.value for entry in graph.inputs if entry.WhichOneof("content") == "value"}
    is_of_weights = {state.value: True for state in graph.states if state.requires_grad}
    for node in graph.nodes:
        read = value_ids(node)
        if not of_inputs.isdisjoint(read):
            of_inputs.update(node.outputs)
        stops = node.context < len(graph.contexts) and not graph.contexts[node.context].grad_enabled
        if stops or is_of_weights.keys().isdisjoint(read) or _detaches(graph, node):
            continue
        outputs = (value_id for value_id in node.outputs if value_id and _is_differentiable(values, value_id))
        is_of_weights.update({value_id: value_id not in of_inputs for value_id in outputs})
    return is_of_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGraph:
    """A graph as it is trained behind a cut, with backward passes in two: `given` are the values that stand for what a
    stage before gives, and `nodes` those that are behind them, or lead to weights alone."""

    given: frozenset[int]
    nodes: frozenset[int]


def split_graph(graph: pb.Graph, is_of_weights: Mapping[int, bool]) -> SplitGraph:
    """Cut in the middle of the nodes that read weights, of those behind the first whose outputs have a gradient for the
    inputs' sake: what a pass for weights takes grows faster than a stage. `is_of_weights`: see `values_with_gradient`.
    """
    of_inputs = {value_id for value_id, is_alone in is_of_weights.items() if not is_alone}
    of_weights = is_of_weights.keys() - of_inputs
    behind_inputs = [index for index, node in enumerate(graph.nodes) if not of_inputs.isdisjoint(value_ids(node))]
    trained = [index for index in behind_inputs if not of_weights.isdisjoint(value_ids(graph.nodes[index]))]
    middle = trained[len(trained) // 2] if trained else 0
    after = [index for index in behind_inputs if index >= middle]
    returned = {output.value for output in graph.outputs if output.WhichOneof("content") == "value"}
    read = returned.union(*(value_ids(graph.nodes[index]) for index in after))
    made = {value_id for index in after for value_id in graph.nodes[index].outputs}
    given = (of_inputs & read) - made
    behind, needed = set(), returned
    for index in reversed(range(len(graph.nodes))):
        node = graph.nodes[index]
        if not (needed - given).isdisjoint(node.outputs):
            behind.add(index)
            needed.update(value_ids(node))
    return SplitGraph(given=frozenset(given), nodes=frozenset(behind))


def _detaches(graph: pb.Graph, node: pb.Node) -> bool:
    return node.operator < len(graph.operators) and facts_of(graph.operators[node.operator].name).detaches


def _is_differentiable(values: ValueTable, value_id: int) -> bool:
    tensor = values.tensor(value_id)
    return tensor is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


class NodeBackward:
    """A node that was run forward once, on copies of the values of `value_ids`; `saved` is what that left behind.

    Raises what torch raises for a node that gradients do not go through.
    """

    def __init__(
        self,
        function: Callable[[Mapping[int, Any]], object],
        values: Mapping[int, Any],
        value_ids: Iterable[int],
        states: Collection[int],
    ) -> None:
        self._leaves = {value_id: _copy(values[value_id]).requires_grad_() for value_id in value_ids}
        given = {**values, **self._leaves}
        kept: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            kept.update(_memory([tensor]))
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            made = list(_tensors(function(given)))
        self.saved = _saved(
            kept,
            states=_memory(_tensors([value for value_id, value in given.items() if value_id in states])),
            inputs=_memory(_tensors([value for value_id, value in given.items() if value_id not in states])),
            outputs=_memory(made),
        )
        self._outputs = [one for one in made if one.requires_grad]
        self._output_gradients = [torch.ones_like(one) for one in self._outputs]
        self._totals = {one: torch.zeros_like(self._leaves[one]) for one in self._leaves if one in states}

    def run(self, value_ids: Collection[int]) -> None:
        """Backward for these of the values, any number of times; adds up what comes out for states, as each microbatch
        does."""
        leaves = [self._leaves[value_id] for value_id in value_ids]
        gradients = torch.autograd.grad(
            self._outputs, leaves, self._output_gradients, retain_graph=True, allow_unused=True
        )
        for value_id, gradient in zip(value_ids, gradients, strict=True):
            if gradient is not None and value_id in self._totals:
                self._totals[value_id].add_(gradient)


def _saved(kept: Memory, states: Memory, inputs: Memory, outputs: Memory) -> Saved:
    within = kept.keys() - states.keys() - inputs.keys() - outputs.keys()
    return Saved(
        inputs=not kept.keys().isdisjoint(inputs.keys() - states.keys()),
        outputs=not kept.keys().isdisjoint(outputs.keys() - states.keys()),
        within_bytes=sum(kept[address] for address in within),
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """With its strides. A clone of an expanded tensor has others, and what reads it takes another way then."""
    num_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    memory = tensor.detach().as_strided((num_elements,), (1,), 0).clone()
    return memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _memory(tensors: Iterable[torch.Tensor]) -> Memory:
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _tensors(outputs: object) -> Iterable[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (list, tuple)):
        for one in outputs:
            yield from _tensors(one)
