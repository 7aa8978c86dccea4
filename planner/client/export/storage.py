"""Which inputs and calls own the storage that a value of a captured program lies in."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch import fx

from planner.client.export.effects import aliased_positions, argument_at, mutated_positions


class StorageRoots:
    """Follows views and in-place writes back to what made the storage. Nodes are added in program order."""

    def __init__(self) -> None:
        self._roots: dict[fx.Node, frozenset[fx.Node]] = {}

    def add(self, node: fx.Node) -> None:
        shared = frozenset(root for source in _sources(node) for root in self._roots.get(source, (source,)))
        self._roots[node] = shared or frozenset({node})

    def own(self, node: fx.Node) -> None:
        """Says that a node, added before, has storage of its own after all."""
        self._roots[node] = frozenset({node})

    def of(self, node: fx.Node) -> frozenset[fx.Node]:
        """More than one where a result may lie in any of several arguments' storage."""
        return self._roots[node]

    def written_by(self, node: fx.Node) -> frozenset[fx.Node]:
        """What made the storage that a node, added before, writes in place."""
        written = [argument_at(node, position) for position in mutated_positions(node)]
        return frozenset(root for one in written if isinstance(one, fx.Node) for root in self.of(one))

    def sharing(self, roots: frozenset[fx.Node]) -> list[fx.Node]:
        """The nodes added so far that may lie in the same storage."""
        return [node for node, own_roots in self._roots.items() if own_roots & roots]


def _sources(node: fx.Node) -> Iterator[fx.Node]:
    """What a node's results may share storage with."""
    if node.target is operator.getitem:
        yield from node.all_input_nodes[:1]
        return
    for position in aliased_positions(node) if node.op == "call_function" else ():
        argument = argument_at(node, position)
        items = argument if isinstance(argument, list | tuple) else (argument,)
        yield from (item for item in items if isinstance(item, fx.Node))
