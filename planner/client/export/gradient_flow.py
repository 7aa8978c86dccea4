"""Which results of a captured program vary with what is trained, as autograd sees it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from planner.client.export.regions import context_of
from planner.client.export.storage import StorageRoots
from planner.graph.operators import facts_of


class GradientFlow:
    """From what has a gradient at first. Nodes are added in program order, each once it is among the `roots`: to write
    what has a gradient gives one to all that lies in the same storage."""

    def __init__(self, roots: StorageRoots, sources: Iterable[fx.Node] = ()) -> None:
        self._roots, self._reached = roots, set(sources)

    def __contains__(self, node: object) -> bool:
        return node in self._reached

    def begin(self, source: fx.Node) -> None:
        self._reached.add(source)

    def add(self, node: fx.Node) -> bool:
        """Whether autograd goes back through this call."""
        if isinstance(node.target, torch._ops.OpOverload) and facts_of(node.target._schema.name).detaches:
            return False
        if not context_of(node).grad_enabled or not any(source in self._reached for source in node.all_input_nodes):
            return False
        self._reached.add(node)
        written = self._roots.written_by(node)
        if written:
            self._reached.update(self._roots.sharing(written))
        return True
