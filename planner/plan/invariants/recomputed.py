"""What stages run again is of earlier stages and gives the same wherever it runs; else the program is as it was."""

from __future__ import annotations

from planner.graph.expression import symbols_in
from planner.graph.ir import Graph, Node, StateKind, values_in
from planner.graph.operators import facts_of
from planner.graph.recomputable import PLAIN_KINDS
from planner.graph.rename import renamed
from planner.plan.invariants.broken import broken
from planner.plan.invariants.gradients import find_gradients
from planner.plan.invariants.history import ProgramHistory, program_history
from planner.plan.plan import Plan, Stage


def check_recomputed(plan: Plan, graph: Graph, stage_of_node: tuple[int, ...]) -> None:
    """Each is of an earlier stage, and pure. That a stage has what they read is for the replay to say."""
    if not any(stage.recomputed_ranges for stage in plan.stages):
        return
    history = program_history(graph)
    differentiated = find_gradients(plan, graph, history).nodes
    purity = _Purity(graph, history)
    for stage in plan.stages:
        for node in _nodes(stage, plan.num_nodes):
            if stage_of_node[node] >= stage.index:
                raise _refused(stage, node, f"is of stage {stage_of_node[node]}, which is not earlier")
            why_not = "has a gradient" if node in differentiated else purity.why_not(node)
            if why_not:
                raise _refused(stage, node, why_not)


def check_same_program(plan: Plan, graph: Graph, expanded: Graph) -> None:
    """With every copy read as its original, the expanded program is the program; copies are read in their stage only.

    Walks the graph anew: after each node come its copies, for the stages that run it again.
    """
    if expanded is graph:
        return
    copies: dict[int, list[int]] = {}
    for stage in plan.stages:
        for again in _nodes(stage, plan.num_nodes):
            copies.setdefault(again, []).append(stage.index)
    owner = {index: stage.index for stage in plan.stages for index in stage.node_indexes()}
    original: dict[int, int] = {}
    home: dict[int, int] = {}
    expanded_nodes = iter(expanded.nodes)
    for index, node in enumerate(graph.nodes):
        for stage_index in (owner[index], *copies.get(index, ())):
            copy = next(expanded_nodes, None)
            if copy is None or len(copy.outputs) != len(node.outputs):
                raise broken("recomputed", f"node {index} is lost in stage {stage_index}", node=index)
            original_of_copy = {new: old for new, old in zip(copy.outputs, node.outputs, strict=True) if new != old}
            original.update(original_of_copy)
            home.update(dict.fromkeys(original_of_copy, stage_index))
            foreign = [value for value in _read(copy) if home.get(value, stage_index) != stage_index]
            if foreign or renamed(copy, original, node.outputs) != node:
                raise broken("recomputed", f"node {index} is another one in stage {stage_index}", node=index)
    if next(expanded_nodes, None) is not None or expanded.outputs != graph.outputs or expanded.states != graph.states:
        raise broken("recomputed", "the program that the stages run does more than the graph")


class _Purity:
    """Tells nodes that give the same wherever they run from those that may not."""

    def __init__(self, graph: Graph, history: ProgramHistory) -> None:
        self._graph = graph
        self._history = history
        self._parameters = {
            state.value_id: state.name
            for state in graph.states
            if state.requires_grad or state.kind is StateKind.PARAMETER
        }
        unbacked = {symbol.id for symbol in graph.symbols if symbol.unbacked}
        self._unsized = {
            value.id
            for value in graph.values
            for expression in (*value.dims, *value.strides, *([value.expression] if value.expression else []))
            if unbacked.intersection(symbols_in(expression))
        }

    def why_not(self, index: int) -> str | None:
        node, effect = self._graph.nodes[index], self._history.effects[index]
        touched = (*effect.reads, *effect.outputs)
        if node.operator.kind not in PLAIN_KINDS or facts_of(node.operator.name).uninitialised:
            return f"calls {node.operator.qualified_name}, whose result is not in its arguments alone"
        if node.operator.random:
            return "draws random numbers"
        if effect.written:
            return f"writes value {effect.written[0]}"
        parameter = next((self._parameters[value] for value in effect.reads if value in self._parameters), None)
        if parameter is not None:
            return f"reads the parameter {parameter!r}"
        if any(token in self._history.touched_by for value in touched for token in self._history.final.tokens[value]):
            return "touches storage that is written in place"
        if not self._unsized.isdisjoint(touched):
            return "makes or reads a size that is not known before"
        return None


def _nodes(stage: Stage, num_nodes: int) -> list[int]:
    nodes: list[int] = []
    for start, end in stage.recomputed_ranges:
        if not (nodes[-1] + 1 if nodes else 0) <= start < end <= num_nodes:
            raise broken(
                "recomputed",
                f"stage {stage.index} runs nodes {start} to {end} of {num_nodes} again, out of order",
                stage=stage.index,
            )
        nodes += range(start, end)
    return nodes


def _read(node: Node) -> set[int]:
    arguments = (*node.arguments, *(argument for _, argument in node.keyword_arguments))
    return {value for argument in arguments for value in values_in(argument)}


def _refused(stage: Stage, node: int, why_not: str) -> Exception:
    return broken(
        "recomputed", f"stage {stage.index} runs node {node} again, which {why_not}", stage=stage.index, node=node
    )
