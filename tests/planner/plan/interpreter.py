"""Runs graphs on symbols: a tensor is a hash of what went into it; storage is shared and written as in torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.graph.ir import (
    Argument,
    ArgumentList,
    Graph,
    Node,
    SubgraphReference,
    ValueReference,
    values_in,
)


@dataclass
class Storage:
    content: int


@dataclass
class Tensor:
    """A view of a storage: `path` tells views of one storage apart."""

    storage: Storage
    path: tuple[object, ...] = ()

    def read(self) -> int:
        """Step by step, so that a view of a copied view reads as a view of the original."""
        content = self.storage.content
        for step in self.path:
            content = hash((step, content))
        return content

    def copy(self) -> Tensor:
        return Tensor(Storage(self.read()))


def fresh(*content: object) -> Tensor:
    return Tensor(Storage(hash(content)))


@dataclass
class Program:
    """A graph with its states, which live from one microbatch to the next. Tied states are one storage."""

    graph: Graph
    states: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        groups: dict[int, Tensor] = {}
        for state in self.graph.states:
            own = fresh("state", state.name if not state.tie_group else state.tie_group)
            self.states[state.value_id] = groups.setdefault(state.tie_group, own) if state.tie_group else own

    def run(self, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The environment after the last node."""
        environment = {**self.states, **inputs}
        for node in self.graph.nodes:
            _run_node(self.graph, node, environment)
        return environment


def outputs_of(graph: Graph, environment: Mapping[int, Tensor]) -> list[int]:
    return [environment[value].read() for output in graph.outputs for value in values_in(output.content)]


def random_inputs(graph: Graph, microbatch: int) -> dict[int, Tensor]:
    ids = (value for entry in graph.inputs for value in values_in(entry.content))
    return {value_id: fresh("input", microbatch, value_id) for value_id in ids}


def _run_node(graph: Graph, node: Node, environment: dict[int, Tensor]) -> None:
    arguments = tuple(_content(graph, argument, environment) for argument in node.arguments)
    what = (node.operator.name, arguments)
    target = environment[values_in(node.arguments[0])[0]]
    if node.operator.mutated_arguments:
        target.storage.content = hash(("write", target.path, target.storage.content, what))
    for position, value_id in enumerate(node.outputs):
        if not value_id:
            continue
        if node.operator.mutated_arguments:
            environment[value_id] = target
        elif node.operator.aliased_arguments:
            environment[value_id] = Tensor(
                target.storage, (*target.path, (node.operator.name, position, arguments[1:]))
            )
        else:
            environment[value_id] = fresh(what, position)


def _content(graph: Graph, argument: Argument, environment: Mapping[int, Tensor]) -> object:
    if isinstance(argument, ValueReference):
        return environment[argument.value_id].read()
    if isinstance(argument, SubgraphReference):
        # By content: a stage numbers its subgraphs anew.
        return repr(graph.subgraphs[argument.subgraph_index].nodes)
    if isinstance(argument, ArgumentList):
        return tuple(_content(graph, item, environment) for item in argument.items)
    return argument
