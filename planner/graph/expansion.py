"""The program that stages run where some run nodes of earlier stages again: each such node written out once more.

Everything that knows only programs in which a node runs once (liveness, edges, the split, what verifies them) works on
the expanded program as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.graph.ir import Graph, Node, Value, values_read
from planner.graph.rename import renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """`stage_of_node` and `original_node` are by node of `graph`; copies stand right after their original, by stage."""

    graph: Graph
    stage_of_node: tuple[int, ...]
    original_node: tuple[int, ...]


def expand(graph: Graph, stage_of_node: Sequence[int], recomputed: Sequence[Sequence[int]]) -> Expanded:
    """`recomputed` [stages]: nodes of earlier stages that each runs again; empty if none does.

    A copy's values have ids that the graph does not use, and only nodes of its stage read them: what is handed from
    stage to stage, and what the program returns, keep their ids. Linear in the graph and the copies.
    """
    stages_of_copies: dict[int, list[int]] = {}
    for stage, nodes in enumerate(recomputed):
        for index in nodes:
            stages_of_copies.setdefault(index, []).append(stage)
    if not stages_of_copies:
        return Expanded(graph=graph, stage_of_node=tuple(stage_of_node), original_node=tuple(range(len(stage_of_node))))
    writer = _Writer(graph)
    for index, (node, stage) in enumerate(zip(graph.nodes, stage_of_node, strict=True)):
        writer.keep(index, node, stage)
        for other in stages_of_copies.get(index, ()):
            assert other > stage, "a stage runs again only what an earlier one runs"
            writer.copy(index, node, other)
    return Expanded(
        graph=replace(graph, nodes=tuple(writer.nodes), values=(*graph.values, *writer.values)),
        stage_of_node=tuple(writer.stages),
        original_node=tuple(writer.originals),
    )


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.stages: list[int] = []
        self.originals: list[int] = []
        self.values: list[Value] = []
        self._known = graph.values_by_id()
        self._next_id = max(self._known, default=0) + 1
        self._names: dict[int, dict[int, int]] = {}

    def keep(self, index: int, node: Node, stage: int) -> None:
        names = self._names.get(stage, {})
        self._add(index, node if names.keys().isdisjoint(values_read(node)) else renamed(node, names), stage)

    def copy(self, index: int, node: Node, stage: int) -> None:
        names = self._names.setdefault(stage, {})
        new_ids = {value_id: self._next_id + place for place, value_id in enumerate(filter(None, node.outputs))}
        self._next_id += len(new_ids)
        self._add(index, renamed(node, names, [new_ids.get(value_id, 0) for value_id in node.outputs]), stage)
        self.values.extend(replace(self._known[old], id=new) for old, new in new_ids.items())
        names.update(new_ids)

    def _add(self, index: int, node: Node, stage: int) -> None:
        self.nodes.append(node)
        self.stages.append(stage)
        self.originals.append(index)
