"""The backward pass of a whole graph in two, as a stage behind a cut runs it under a schedule that splits.

Halves of nodes say how a backward pass divides, and not what its halves take: the graph is walked for the ways to
weights, gradients wait in memory between the halves, and each layer's weights are a call of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.autograd.graph import get_gradient_edge

from protos.v1 import graph_pb2 as pb
from stage_daemon.loader.rebuild import VALUE_ID
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.runtime.training.split_backward import NO_WEIGHT_PASS, input_pass
from stage_daemon.worker.profile.clock import Effort
from stage_daemon.worker.profile.gradients import SplitGraph
from stage_daemon.worker.profile.rehearsal import LEAST_ROUNDS, MOST_SECONDS, marks_on, program_of, typical
from stage_daemon.worker.profile.values import ValueTable

_LEAVES = "leaves"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSeconds:
    """Of one microbatch through all that is behind a cut: for what was given, and later for weights."""

    input_gradients: float
    weight_gradients: float


def rehearse_split(
    graph: pb.Graph,
    values: ValueTable,
    device: torch.device,
    effort: Effort,
    split: SplitGraph,
    on_round: Callable[[], None],
) -> SplitSeconds:
    """The pass for weights comes after the next microbatch's for inputs, as where schedules fill a bubble with it.
    `on_round` is called after each microbatch.

    Raises what a node raises on made-up values or backward, and InsufficientMemory.
    """
    program = program_of(graph, values, device, num_kept=2)
    leaves = _Leaves()
    module = _cut(program.module, split, leaves)
    weights = [state for state in program.module.states().values() if state.requires_grad]
    marks = marks_on(device)
    rounds: list[list[float]] = []
    before = NO_WEIGHT_PASS
    until = time.monotonic() + MOST_SECONDS
    while len(rounds) <= effort.repetitions + 1 and (len(rounds) <= LEAST_ROUNDS + 1 or time.monotonic() < until):
        roots = program.roots(module)
        edges, gradients = [get_gradient_edge(one) for one in roots], [torch.ones_like(one) for one in roots]
        del roots
        marks.mark()
        _, following = input_pass(edges, gradients, leaves.take(), weights)
        marks.mark()
        before.run()
        marks.mark()
        before = following
        rounds.append(marks.seconds())
        on_round()
    # The first has none before it for weights, and another is to warm up.
    inputs, of_weights = (typical(seconds) for seconds in zip(*rounds[2:], strict=True))
    return SplitSeconds(input_gradients=inputs, weight_gradients=of_weights)


@dataclass(slots=True)
class _Leaves:
    """Of one run, in the order in which they were made."""

    _made: list[torch.Tensor] = field(default_factory=list)

    def make(self, value: torch.Tensor) -> torch.Tensor:
        if not value.requires_grad:
            return value
        self._made.append(value.detach().requires_grad_())
        return self._made[-1]

    def take(self) -> list[torch.Tensor]:
        made, self._made = self._made, []
        return made


def _cut(module: StageModule, split: SplitGraph, leaves: _Leaves) -> StageModule:
    """The same program on the same states, in which each value that is given is a leaf."""
    copied = fx.Graph()
    copied.output(copied.graph_copy(module.program.graph, {}))
    given = [node for node in copied.nodes if node.meta.get(VALUE_ID) in split.given]
    for node in given:
        with copied.inserting_after(node):
            handle = copied.create_node("get_attr", _LEAVES)
        with copied.inserting_after(handle):
            leaf = copied.call_method("make", (handle, node))
        node.replace_all_uses_with(leaf, lambda user, leaf=leaf: user is not leaf)
    # No tensor and no module, so nothing is registered.
    setattr(module.program, _LEAVES, leaves)
    return module.with_program(fx.GraphModule(module.program, copied, "CutProgram"))
