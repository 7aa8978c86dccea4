"""What a stage had best run again, if seconds add up: the least cut between what it needs and what it could be sent.

Each value that it needs is sent, or made by running its producer again, which in turn needs what that reads. Seconds of
what is sent and run add up, so the best choice is a least cut (project selection: Picard 1976).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

import numpy as np

from planner.partition.least_cut import Network
from planner.partition.problem import Floats, PartitionProblem

# Nodes looked at for one stage, those nearest to what it needs first.
MAX_CONE_NODES = 500
_SOURCE, _SINK = -1, -2
_SCALE = 1 << 40
_ENDLESS = 1 << 80


class Cones:
    """Producers and reads of one problem, ready to be walked backward."""

    def __init__(self, problem: PartitionProblem) -> None:
        order = np.argsort(problem.read_node, kind="stable")
        self._reads = problem.read_value[order].tolist()
        self._starts = np.searchsorted(problem.read_node[order], np.arange(problem.num_nodes + 1)).tolist()
        self.producer: list[int] = problem.value_producer.tolist()
        # Nodes that have to share a stage do: a part of them elsewhere is not what was asked for.
        self.may_run = problem.node_recomputable & ~problem.node_has_gradient & (problem.node_group < 0)

    def reads(self, node: int) -> list[int]:
        values: list[int] = self._reads[self._starts[node] : self._starts[node + 1]]
        return values

    def best(
        self,
        needed: Iterable[int],
        at_hand: Collection[int],
        send_seconds: Callable[[int], float],
        run_seconds: Floats,
    ) -> tuple[int, ...]:
        """Nodes to run again, ascending. `at_hand`: values that the stage has in any case.

        `send_seconds` is of a value, `run_seconds` [n] of a node, infinite where it cannot run.
        """
        values = [value for value in needed if value not in at_hand]
        worth = sum(send_seconds(value) for value in values)
        cone = self._cone(values, at_hand, run_seconds, worth)
        if not cone or not worth:
            return ()
        offset = len(self.producer)
        network = Network()
        for value in values:
            network.add(_SOURCE, value, _ENDLESS)
        for value in self._values(values, cone, at_hand):
            made_by = self.producer[value]
            network.add(value, made_by + offset if made_by in cone else _SINK, _units(send_seconds(value), worth))
        for node in cone:
            network.add(node + offset, _SINK, _units(float(run_seconds[node]), worth))
            for value in self.reads(node):
                if value not in at_hand:
                    network.add(node + offset, value, _ENDLESS)
        return tuple(sorted(place - offset for place in network.source_side(_SOURCE, _SINK) if place >= offset))

    def _cone(
        self, values: Iterable[int], at_hand: Collection[int], run_seconds: Floats, worth: float
    ) -> dict[int, None]:
        """Nodes that could be run again for what is wanted, in the order found; none dearer than all that is sent."""
        cone: dict[int, None] = {}
        waiting = deque(values)
        while waiting and len(cone) < MAX_CONE_NODES:
            node = self.producer[waiting.popleft()]
            if node < 0 or node in cone or not self.may_run[node] or run_seconds[node] > worth:
                continue
            cone[node] = None
            waiting.extend(value for value in self.reads(node) if value not in at_hand)
        return cone

    def _values(self, to_send: Iterable[int], cone: Iterable[int], at_hand: Collection[int]) -> dict[int, None]:
        read = (value for node in cone for value in self.reads(node) if value not in at_hand)
        return dict.fromkeys((*to_send, *read))


def _units(seconds: float, worth: float) -> int:
    """Whole numbers, so that every machine finds the same cut."""
    return min(round(seconds / worth * _SCALE), _ENDLESS)


def sent_for_nothing(problem: PartitionProblem) -> PartitionProblem:
    """The same problem, but for tensors that cost less to make again from the program's inputs than to send.

    A search that may run nodes again takes them to be free to move. Linear; seconds shared by two reads count twice.
    """
    cones = Cones(problem)
    run_seconds = problem.pass_seconds.min(axis=0).tolist()
    apart = ~np.eye(problem.num_devices, dtype=np.bool_)
    per_byte = float(problem.link_seconds_per_byte[apart].mean()) if problem.num_devices > 1 else 0.0
    total = [0.0] * problem.num_nodes
    for node, may_run in enumerate(cones.may_run.tolist()):
        made_by = (cones.producer[value] for value in cones.reads(node))
        total[node] = run_seconds[node] + sum(total[maker] for maker in made_by if maker >= 0) if may_run else np.inf
    made = problem.value_producer >= 0
    free = np.zeros(problem.num_values, dtype=np.bool_)
    free[made] = np.array(total)[problem.value_producer[made]] < problem.value_bytes[made] * per_byte
    return replace(problem, value_bytes=np.where(free, 0, problem.value_bytes))
