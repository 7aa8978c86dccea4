"""The problem in numbers, and its solutions.

A plan is a pipeline of stages; no edge runs back. A stage has `copies` (data parallel), which share the microbatches of
a batch, each on `degree` devices (tensor parallel). For each node it takes one of the alternatives that the node has at
that degree, such as with activation recomputation or without.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.problem import Floats, Integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HybridProblem:
    """Nodes [n], edges [e], degrees [t] (devices per copy, ascending), alternatives [a].

    `seconds` [t, n, a]: of one sample; inf where the node has no such alternative. `parameter_bytes` [t, n, a].
    A device holds `held_per_microbatch` [t, n, a] for each microbatch in flight, and `held_always` [t, n, a].
    Across a cut go `edge_bytes` [e], and besides `entering_bytes` [t, e, a] for the reader's alternative and
    `leaving_bytes` [t, e, a] for the producer's. `microbatches`: of a batch. `bandwidth`: bytes per second.
    """

    degrees: Integers
    seconds: Floats
    parameter_bytes: Floats
    held_per_microbatch: Floats
    held_always: Floats
    edge_source: Integers
    edge_target: Integers
    edge_bytes: Floats
    entering_bytes: Floats
    leaving_bytes: Floats
    microbatches: int
    num_devices: int
    memory_bytes: float
    bandwidth: float

    @property
    def num_nodes(self) -> int:
        return int(self.seconds.shape[1])

    @property
    def copies(self) -> Integers:
        """Numbers of copies that a stage may have, ascending: they share the microbatches of a batch evenly."""
        counts = np.arange(1, min(self.microbatches, self.num_devices) + 1)
        return np.asarray(counts[self.microbatches % counts == 0], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStage:
    """`degree`: position in HybridProblem.degrees. `alternatives`: (node, alternative), nodes ascending."""

    copies: int
    degree: int
    alternatives: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPlan:
    """Stages in pipeline order. No plan takes fewer than `lower_bound_seconds` per sample."""

    stages: tuple[HybridStage, ...]
    seconds_per_sample: float
    lower_bound_seconds: float
