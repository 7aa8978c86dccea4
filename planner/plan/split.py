"""One stage of a plan as a graph of its own: what its daemon loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from planner.graph.expression import symbols_in
from planner.graph.ir import (
    Argument,
    ArgumentList,
    Graph,
    Input,
    Node,
    Output,
    SubgraphReference,
    TreeDict,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueReference,
)
from planner.graph.subgraphs import subgraphs_read
from planner.plan.expansion import expanded_plan
from planner.plan.plan import Plan


def stage_graph(graph: Graph, plan: Plan, stage_index: int) -> Graph:
    """Inputs: what the stage consumes, in the order of its liveness table. Outputs: `Stage.outputs`, as a tuple.

    Value ids are the whole graph's, so that stages can be joined by them, but for what the stage recomputes; subgraphs
    and symbols are those in use.
    """
    graph, plan, _ = expanded_plan(graph, plan)
    stage = plan.stages[stage_index]
    nodes = tuple(graph.nodes[index] for index in stage.node_indexes())
    owned = frozenset(stage.states)
    states = tuple(state for state in graph.states if state.name in owned)
    input_ids = tuple(entry.value_id for entry in stage.liveness if entry.consumed)
    value_ids = {*input_ids, *(state.value_id for state in states)}
    value_ids.update(value_id for node in nodes for value_id in node.outputs if value_id)
    values = tuple(value for value in graph.values if value.id in value_ids)
    subgraphs, nodes = _used_subgraphs(graph, nodes)
    symbol_ids = set(_symbols_used(values, nodes, subgraphs))
    return Graph(
        torch_version=graph.torch_version,
        name=graph.name,
        symbols=tuple(symbol for symbol in graph.symbols if symbol.id in symbol_ids),
        values=values,
        nodes=nodes,
        subgraphs=subgraphs,
        states=states,
        inputs=tuple(Input(name=_label(value_id), content=ValueReference(value_id)) for value_id in input_ids),
        outputs=tuple(Output(name=_label(value_id), content=ValueReference(value_id)) for value_id in stage.outputs),
        input_tree=TreeTuple((_leaves(len(input_ids)), TreeDict((), ()))),
        output_tree=_leaves(len(stage.outputs)),
        training=graph.training,
    )


def _label(value_id: int) -> str:
    return f"value_{value_id}"


def _leaves(count: int) -> TreeTuple:
    return TreeTuple((TreeLeaf(),) * count)


def _symbols_used(values: Iterable[Value], nodes: Iterable[Node], subgraphs: Iterable[Graph]) -> Iterator[int]:
    for value in values:
        for expression in (*value.dims, *value.strides):
            yield from symbols_in(expression)
        if value.expression is not None:
            yield from symbols_in(value.expression)
    for node in nodes:
        for count in (node.flops, node.bytes_moved):
            if count is not None:
                yield from symbols_in(count)
    for subgraph in subgraphs:
        yield from _symbols_used(subgraph.values, subgraph.nodes, subgraph.subgraphs)


def _used_subgraphs(graph: Graph, nodes: tuple[Node, ...]) -> tuple[tuple[Graph, ...], tuple[Node, ...]]:
    """The subgraphs that the nodes speak of, in the graph's order, and the nodes with references renumbered."""
    if not graph.subgraphs:
        return (), nodes
    used = sorted({index for node in nodes for index in subgraphs_read(node)})
    new_index = {old: new for new, old in enumerate(used)}
    renumbered = tuple(_map_subgraphs(node, lambda old: new_index[old]) for node in nodes)
    return tuple(graph.subgraphs[old] for old in used), renumbered


def _map_subgraphs(node: Node, renumber: Callable[[int], int]) -> Node:
    if not any(True for _ in subgraphs_read(node)):
        return node

    def renumbered(argument: Argument) -> Argument:
        if isinstance(argument, SubgraphReference):
            return SubgraphReference(renumber(argument.subgraph_index))
        if isinstance(argument, ArgumentList):
            return ArgumentList(tuple(renumbered(item) for item in argument.items))
        if isinstance(argument, tuple):
            return tuple(renumbered(item) for item in argument)
        return argument

    return replace(
        node,
        arguments=tuple(renumbered(argument) for argument in node.arguments),
        keyword_arguments=tuple((name, renumbered(argument)) for name, argument in node.keyword_arguments),
    )
