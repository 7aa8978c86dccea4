"""The forward and backward passes of one microbatch through one stage.

What a stage receives are leaves of a graph of its own; what comes back for them is sent on. A gradient that is absent
is not one of zeros: backward through zeros may give NaN where no gradient goes at all.

A stage that computes its activations again lets the graph of its forward pass go, and keeps what a second one begins
from: the same inputs, and the states that a run writes as they were, so that it writes them once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from stage_daemon.runtime.environment import Environment
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.split_backward import NO_WEIGHT_PASS, WeightPass, input_pass
from stage_daemon.transport.parcel import Item, MicrobatchFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of a forward pass. `versions` count the writes to each tensor among `inputs` before it ran."""

    inputs: tuple[Item, ...]
    written_states: Mapping[str, torch.Tensor]
    versions: tuple[int, ...]

    @property
    def still_holds(self) -> bool:
        """No input was written over meanwhile."""
        return self.versions == _versions(self.inputs)


def beginning_of(stage: Stage, inputs: tuple[Item, ...]) -> Beginning:
    written = stage.module.written_states() if stage.module else {}
    return Beginning(inputs=inputs, written_states=written, versions=_versions(inputs))


def _versions(items: Iterable[Item]) -> tuple[int, ...]:
    return tuple(item._version for item in items if isinstance(item, torch.Tensor))


class Root(NamedTuple):
    """Where a backward pass begins, without the tensor: it may be large, and nothing may read it any more."""

    edge: GradientEdge
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Root:
        return cls(get_gradient_edge(tensor), tensor.dtype, tensor.device)


@dataclass(slots=True, kw_only=True)
class StagePass(Environment):
    """`values` as in inference. `leaves` came with a gradient to give back, `roots` are given with one to come."""

    stage: int
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)
    roots: dict[int, Root] = field(default_factory=dict)
    # By value: the stage that each came from, and it.
    root_gradients: dict[int, list[tuple[int, torch.Tensor]]] = field(default_factory=dict)
    # Of the leaves, with one dimension more: see `packed`.
    leaf_gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    # Where the backward pass is split, its second half.
    weight_pass: WeightPass = NO_WEIGHT_PASS
    # Where the forward pass is to run again before backward does.
    beginning: Beginning | None = None

    def fail(self, failure: MicrobatchFailure) -> None:
        Environment.fail(self, failure)
        self.forget()

    def forget(self) -> None:
        for collection in (self.leaves, self.roots, self.root_gradients, self.leaf_gradients):
            collection.clear()
        self.weight_pass = NO_WEIGHT_PASS
        self.beginning = None

    def receive(self, value_ids: Iterable[int], items: Sequence[Item], with_gradient: Collection[int]) -> None:
        for value_id, item in zip(value_ids, items, strict=True):
            if value_id in with_gradient and isinstance(item, torch.Tensor):
                item = item.detach().requires_grad_()
                self.leaves[value_id] = item
            self.values[value_id] = item

    def ran(self, value_ids: Sequence[int], outputs: Sequence[Item], with_gradient: Collection[int]) -> None:
        """Keeps the graph only of what a gradient comes back for."""
        self.add(value_ids, [one.detach() if isinstance(one, torch.Tensor) else one for one in outputs])
        self.keep_graph(value_ids, outputs, with_gradient)

    def keep_graph(self, value_ids: Sequence[int], outputs: Sequence[Item], with_gradient: Collection[int]) -> None:
        for value_id, output in zip(value_ids, outputs, strict=True):
            if value_id in with_gradient and isinstance(output, torch.Tensor) and output.requires_grad:
                self.roots[value_id] = Root.of(output)

    def keep_beginning(self, beginning: Beginning) -> None:
        """In place of the graph, unless the pass wrote over an input and would give something else."""
        if beginning.still_holds:
            self.roots.clear()
            self.beginning = beginning

    def receive_gradients(self, value_ids: Iterable[int], items: Sequence[Item], source_stage: int) -> None:
        for value_id, item in zip(value_ids, items, strict=True):
            assert isinstance(item, torch.Tensor)
            if len(item):
                self.root_gradients.setdefault(value_id, []).append((source_stage, item[0]))

    def start(self, loss_id: int, seed: float) -> None:
        """Where the loss, a scalar, is given, its gradient is the seed."""
        loss = self.roots.get(loss_id, self.leaves.get(loss_id))
        if loss is not None:
            gradient = torch.full((), seed, dtype=loss.dtype, device=loss.device)
            self.root_gradients[loss_id] = [(self.stage, gradient)]

    def backward(self) -> None:
        """For leaves and weights at once; gradients of weights add up in `Parameter.grad`."""
        roots, gradients = self._begin()
        if roots:
            torch.autograd.backward(roots, gradients)
        self._pack(leaf.grad for leaf in self.leaves.values())
        self.roots.clear()

    def backward_input(self, weights: Sequence[torch.Tensor]) -> None:
        """`weights` get their gradients from `backward_weight`."""
        roots, gradients = self._begin()
        leaf_gradients, self.weight_pass = input_pass(roots, gradients, list(self.leaves.values()), weights)
        self._pack(leaf_gradients)
        self.roots.clear()

    def backward_weight(self) -> None:
        self.weight_pass.run()
        self.weight_pass = NO_WEIGHT_PASS

    def _begin(self) -> tuple[list[GradientEdge], list[torch.Tensor]]:
        """What backward starts from. A value that is passed on as it came is a leaf, and adds to itself."""
        roots, gradients = [], []
        for value_id, received in self.root_gradients.items():
            if value_id in self.roots:
                roots.append(self.roots[value_id].edge)
            elif value_id in self.leaves:
                roots.append(get_gradient_edge(self.leaves[value_id]))
            else:
                continue
            gradients.append(_sum(received))
        self.root_gradients.clear()
        return roots, gradients

    def _pack(self, gradients: Iterable[torch.Tensor | None]) -> None:
        for (value_id, leaf), gradient in zip(self.leaves.items(), gradients, strict=True):
            self.leaf_gradients[value_id] = packed(gradient, leaf)
        self.leaves.clear()


def packed(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """A gradient as it crosses an edge: none of dimension 0 where it is absent."""
    return like.new_empty((0, *like.shape)) if gradient is None else gradient.detach().unsqueeze(0)


def _sum(received: Iterable[tuple[int, torch.Tensor]]) -> torch.Tensor:
    """In the order in which one process would add them: what used the value last comes first."""
    in_order: Iterator[torch.Tensor] = (gradient for _, gradient in sorted(received, key=lambda one: -one[0]))
    total = next(in_order)
    for gradient in in_order:
        total = total + gradient
    return total
