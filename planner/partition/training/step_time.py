"""Seconds of one training step: the longest path through its passes and messages, exact for stages that are uneven.

A stage takes what enters, runs, and sends what leaves; backward it does the same with gradients. All of that occupies
its device. A message streams: its receiver may begin as soon as its sender has, if it is free, and is done no sooner
than `received` seconds later. Copies of a stage count as the slowest of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.partition.training.pipeline_order import Pass, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Of one microbatch. What is received and sent backward are gradients."""

    forward: float
    backward: float
    received: float
    sent: float
    gradients_received: float
    gradients_sent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """Gradients that devices sum once all of them are done with their passes."""

    devices: tuple[int, ...]
    seconds: float


def step_seconds(
    orders: Mapping[int, Sequence[Step]],
    stages: Sequence[StageSeconds],
    edges: Sequence[tuple[int, int]],
    gradient_edges: Sequence[tuple[int, int]],
    reductions: Sequence[Reduction],
    microbatches: int,
) -> float:
    """`edges` lead from an earlier stage to a later one, `gradient_edges` are those whose gradients come back.

    O(steps + microbatches x edges).
    """
    walk = _Walk(orders, stages, edges, gradient_edges, microbatches)
    walk.run()
    for reduction in reductions:
        done = max(walk.free[device] for device in reduction.devices) + reduction.seconds
        walk.free.update(dict.fromkeys(reduction.devices, done))
    return max(walk.free.values())


class _Walk:
    """Each device as far as it gets, woken by what it waits for."""

    def __init__(
        self,
        orders: Mapping[int, Sequence[Step]],
        stages: Sequence[StageSeconds],
        edges: Sequence[tuple[int, int]],
        gradient_edges: Sequence[tuple[int, int]],
        microbatches: int,
    ) -> None:
        self.free = dict.fromkeys(orders, 0.0)
        self._orders, self._stages = orders, stages
        self._sources: list[list[int]] = [[] for _ in stages]
        self._targets: list[list[int]] = [[] for _ in stages]
        for source, target in edges:
            self._sources[target].append(source)
        for source, target in gradient_edges:
            self._targets[source].append(target)
        self._sent: list[list[float | None]] = [[None] * microbatches for _ in stages]
        self._gradient_sent: list[list[float | None]] = [[None] * microbatches for _ in stages]
        self._position = dict.fromkeys(orders, 0)
        self._waiting: dict[tuple[bool, int, int], list[int]] = {}
        self._ready = list(orders)

    def run(self) -> None:
        while self._ready:
            self._advance(self._ready.pop())
        assert all(self._position[device] == len(order) for device, order in self._orders.items()), "a deadlock"

    def _advance(self, device: int) -> None:
        order, position, free = self._orders[device], self._position[device], self.free[device]
        while position < len(order):
            step = order[position]
            forward = step.kind is Pass.FORWARD
            after = self._begin(step, free, device)
            if after is None:
                break
            free = after
            costs = self._stages[step.stage]
            if forward:
                free += costs.received + costs.forward
                self._tell(self._sent, step, free, forward)
                free += costs.sent
            elif step.kind is Pass.BACKWARD_WEIGHT:
                free += costs.backward / 2
            else:
                free += costs.gradients_received + costs.backward / (2 if step.kind is Pass.BACKWARD_INPUT else 1)
                self._tell(self._gradient_sent, step, free, forward)
                free += costs.gradients_sent
            position += 1
        self._position[device], self.free[device] = position, free

    def _begin(self, step: Step, free: float, device: int) -> float | None:
        """When the step can begin; None, and woken later, if that is not known yet."""
        if step.kind is Pass.BACKWARD_WEIGHT:
            return free
        forward = step.kind is Pass.FORWARD
        sent, partners = (self._sent, self._sources) if forward else (self._gradient_sent, self._targets)
        for partner in partners[step.stage]:
            at = sent[partner][step.microbatch]
            if at is None:
                self._waiting.setdefault((forward, partner, step.microbatch), []).append(device)
                return None
            free = max(free, at)
        return free

    def _tell(self, sent: list[list[float | None]], step: Step, at: float, forward: bool) -> None:
        sent[step.stage][step.microbatch] = at
        self._ready += self._waiting.pop((forward, step.stage, step.microbatch), [])
