"""Which operations lie in which partition, and what passes between partitions.

The orders are torch.fx's: partitions as they first appear, inputs and outputs as they are first used across a border.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from planner.fx_compat.splitting.regions import GLOBAL_STATE

# Not in any partition: placeholders and states are handed to the partitions that use them.
_OUTSIDE = frozenset({"placeholder", "get_attr", "output"})


@dataclass(slots=True, kw_only=True)
class Partition:
    """Dicts serve as ordered sets: the nodes of the split graph that come in and go out, in order of first use."""

    name: str
    nodes: list[fx.Node] = field(default_factory=list)
    inputs: dict[fx.Node, None] = field(default_factory=dict)
    outputs: dict[fx.Node, None] = field(default_factory=dict)

    @property
    def module_name(self) -> str:
        return f"submod_{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioning:
    """`partition_of` holds what the callback said; `uses`, by producing and by using partition, the first such use."""

    partitions: Mapping[str, Partition]
    name_of: Mapping[fx.Node, str]
    partition_of: Mapping[fx.Node, Any]
    uses: Mapping[tuple[str, str], tuple[fx.Node, fx.Node]]


def partition_nodes(
    graph: fx.Graph, split_callback: Callable[[fx.Node], Any], partition_affix: str | None
) -> Partitioning:
    """Asks the callback once for each operation, in order."""
    partition_of = {node: split_callback(node) for node in graph.nodes if node.op not in _OUTSIDE}
    prefix = "" if partition_affix is None else f"{partition_affix}_"
    name_of = {node: f"{prefix}{partition}" for node, partition in partition_of.items()}
    partitions: dict[str, Partition] = {}
    for node, name in name_of.items():
        partitions.setdefault(name, Partition(name=name)).nodes.append(node)
    uses = _Crossings(partitions, name_of, _symbol_producers(graph)).record(graph)
    return Partitioning(partitions=partitions, name_of=name_of, partition_of=partition_of, uses=uses)


class _Crossings:
    def __init__(
        self,
        partitions: dict[str, Partition],
        name_of: Mapping[fx.Node, str],
        producers: Mapping[sympy.Symbol, fx.Node],
    ) -> None:
        self._partitions = partitions
        self._name_of = name_of
        self._producers = producers
        self._seen: set[fx.Node] = set()
        self._uses: dict[tuple[str, str], tuple[fx.Node, fx.Node]] = {}

    def record(self, graph: fx.Graph) -> dict[tuple[str, str], tuple[fx.Node, fx.Node]]:
        for node in graph.nodes:
            if node.op == "output":
                for source in node.all_input_nodes:
                    self._returned(source)
            elif node.op not in _OUTSIDE and node.target not in GLOBAL_STATE:
                for source in node.all_input_nodes:
                    self._used(source, node)
            self._seen.add(node)
        return self._uses

    def _returned(self, node: fx.Node) -> None:
        if node in self._name_of:
            self._partitions[self._name_of[node]].outputs.setdefault(node)

    def _used(self, node: fx.Node, user: fx.Node) -> None:
        if self._name_of.get(node) == self._name_of[user]:
            return
        self._cross(node, user)
        value = node.meta.get("example_value")
        if value is None:
            return
        for symbol in sorted(free_symbols(value), key=str):
            producer = self._producers.get(symbol)
            # A producer that comes later cannot be what this value's shape was made from.
            if producer is None or producer not in self._seen:
                continue
            if self._name_of.get(producer) != self._name_of[user]:
                self._cross(producer, user)

    def _cross(self, node: fx.Node, user: fx.Node) -> None:
        target = self._name_of[user]
        self._partitions[target].inputs.setdefault(node)
        if (source := self._name_of.get(node)) is not None:
            self._partitions[source].outputs.setdefault(node)
            self._uses.setdefault((source, target), (node, user))


def _symbol_producers(graph: fx.Graph) -> Mapping[sympy.Symbol, fx.Node]:
    """The first node whose value is just that symbol: a placeholder wherever there is one."""
    producers: dict[sympy.Symbol, fx.Node] = {}
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt | torch.SymFloat) and isinstance(symbol := value.node.expr, sympy.Symbol):
            producers.setdefault(symbol, node)
    return producers
