"""A backward pass in two: for what a stage was given, whose gradients others wait for, and later for its weights.

The first stops wherever the graph leads to weights alone, and keeps the gradient there; the second goes on from these.
So neither does what the other has done. Each time it goes on, torch looks at all of the graph behind that place, so
places that do not lead to each other are one call together. A weight that is read at two places of the way back has no
one place to go on from: for such weights the second pass walks from the beginning, if their gradients are too large to
wait. Those that are not come out of the first pass; and so do vectors where no matrix is beside them, for a second pass
from there costs more than what it spares the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = Sequence[torch.Tensor | None]

# Of one weight, for each microbatch between its passes.
_MAX_WAITING_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What backward goes on from for some weights. `edges` are distinct; one without a gradient gives none."""

    edges: Sequence[GradientEdge]
    gradients: Gradients
    weights: Sequence[torch.Tensor]

    def run(self, *, keeps_graph: bool) -> None:
        present = [pair for pair in zip(self.edges, self.gradients, strict=True) if pair[1] is not None]
        if present and self.weights:
            edges, gradients = zip(*present, strict=True)
            torch.autograd.backward(edges, gradients, retain_graph=keeps_graph, inputs=list(self.weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPass:
    """Of one microbatch through one stage; runs once. `starts`: first of them the beginning."""

    starts: Sequence[_Start] = ()

    def run(self) -> None:
        """Gradients add up in `Tensor.grad`. What the first start walks, those after it begin in."""
        for place, start in enumerate(self.starts):
            start.run(keeps_graph=place == 0 and len(self.starts) > 1)


NO_WEIGHT_PASS = WeightPass()


def input_pass(
    roots: Sequence[GradientEdge],
    gradients: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
) -> tuple[Gradients, WeightPass]:
    """The gradients of the leaves, None for one that gets none, and the pass for weights that is still to come.

    Linear in the graph's nodes.
    """
    if not roots or not leaves:
        start = _Start(edges=roots, gradients=gradients, weights=weights)
        return [None] * len(leaves), WeightPass(starts=[start])
    ways = _Ways(roots, leaves)
    by_owner: dict[Node | None, list[torch.Tensor]] = {None: []}
    for weight in weights:
        node = get_gradient_edge(weight).node
        if node in ways.owners:
            by_owner.setdefault(ways.owners[node], []).append(weight)
    off_one_way = by_owner.pop(None)
    walked = [weight for weight in off_one_way if weight.nbytes > _MAX_WAITING_BYTES]
    at_once = [weight for weight in off_one_way if weight.nbytes <= _MAX_WAITING_BYTES]
    by_level: dict[int, _Boundary] = {}
    for owner, own in by_owner.items():
        assert owner is not None
        if all(weight.dim() < 2 for weight in own):
            at_once += own
        else:
            by_level.setdefault(ways.levels[owner], _Boundary()).add(ways.edges_into(owner), own)
    boundaries = [_Boundary([get_gradient_edge(weight) for weight in at_once], at_once), *by_level.values()]
    targets = [get_gradient_edge(leaf) for leaf in leaves]
    targets += chain.from_iterable(boundary.edges for boundary in boundaries)
    computed = torch.autograd.grad(roots, targets, gradients, retain_graph=True, allow_unused=True)
    later = iter(computed[len(leaves) :])
    starts = [
        _Start(edges=one.edges, gradients=[next(later) for _ in one.edges], weights=one.weights) for one in boundaries
    ]
    return computed[: len(leaves)], WeightPass(
        starts=[_Start(edges=roots, gradients=gradients, weights=walked), *starts]
    )


@dataclass(slots=True)
class _Boundary:
    """Where the second pass goes on from, for weights behind it."""

    edges: list[GradientEdge] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)

    def add(self, edges: Iterable[GradientEdge], weights: Iterable[torch.Tensor]) -> None:
        self.edges += edges
        self.weights += weights


@dataclass(slots=True)
class _Ways:
    """`owners`: of each node that leads to no leaf, the one node on the way to leaves that it is reached from, or None
    where there are several, or a beginning is such a node itself. `levels`: how far each node is from what it leads to
    at most; of two on one level neither leads to the other."""

    beginning: Sequence[GradientEdge]
    leaves: Iterable[torch.Tensor]
    owners: dict[Node, Node | None] = field(default_factory=dict)
    levels: dict[Node, int] = field(default_factory=dict)
    _outputs: dict[Node, set[int]] = field(default_factory=dict)
    # Torch makes an object for each node that it is asked for: once is enough.
    _children: dict[Node, list[Node]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        to_leaves = {get_gradient_edge(leaf).node for leaf in self.leaves}
        for edge in self.beginning:
            self._outputs.setdefault(edge.node, set()).add(edge.output_nr)
        order = self._children_first()
        for node in order:
            self.levels[node] = 1 + max((self.levels[child] for child in self._children[node]), default=0)
            if not to_leaves.isdisjoint(self._children[node]):
                to_leaves.add(node)
        for node in order:
            if node in to_leaves:
                self._own((child for child in self._children[node] if child not in to_leaves), node)
        self._own((edge.node for edge in self.beginning if edge.node not in to_leaves), None)

    def edges_into(self, node: Node) -> tuple[GradientEdge, ...]:
        return tuple(GradientEdge(node, output) for output in sorted(self._outputs[node]))

    def _children_first(self) -> list[Node]:
        order: list[Node] = []
        seen: set[Node] = set()
        stack = [(edge.node, False) for edge in self.beginning]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                children = self._children[node] = []
                for child, output in node.next_functions:
                    if child is not None:
                        self._outputs.setdefault(child, set()).add(output)
                        children.append(child)
                        stack.append((child, False))
        return order

    def _own(self, nodes: Iterable[Node], owner: Node | None) -> None:
        """And all behind them. What another owns has none from then on."""
        stack = [(node, owner) for node in nodes]
        while stack:
            node, claimed = stack.pop()
            if node in self.owners:
                if self.owners[node] in (None, claimed):
                    continue
                claimed = None
            self.owners[node] = claimed
            stack += [(child, claimed) for child in self._children[node]]
