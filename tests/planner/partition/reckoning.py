"""What an assignment costs, worked out a second time: plain lists and sets, walked as the definitions in
planner/partition/evaluate.py read. In inference only, each stage on one device; some twenty times as quick on small
problems, which lets tests try every assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.partition.assignment import Assignment
from planner.partition.objective import Objective
from planner.partition.problem import PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Reckoned:
    """By device its seconds and bytes, and a lone batch's seconds."""

    loads: list[float]
    peaks: list[int]
    latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parted:
    """What stages do and hold, whatever devices run them; `sends`: (value, sending stage, receiving stage)."""

    nodes: list[list[int]]
    sends: list[tuple[int, int, int]]
    stage_bytes: list[int]


class Reckoner:
    """Holds a problem as lists, and what the stages that were asked for last come to on any devices."""

    def __init__(self, problem: PartitionProblem) -> None:
        assert problem.training is None
        assert not problem.shown_root.size
        self.problem = problem
        self._seconds, self._deliveries = problem.compute_seconds.tolist(), problem.delivery_seconds.tolist()
        self._latency, self._per_byte = problem.link_latency_seconds.tolist(), problem.link_seconds_per_byte.tolist()
        self._sizes, self._maker = problem.value_bytes.tolist(), problem.value_producer.tolist()
        self._returned = problem.value_returned.tolist()
        self._root, self._root_sizes = problem.value_root.tolist(), problem.root_bytes.tolist()
        self._root_maker = problem.root_producer.tolist()
        self._rooms, self._state_sizes = problem.device_memory_bytes.tolist(), problem.state_bytes.tolist()
        self._readers: list[list[int]] = [[] for _ in self._sizes]
        for value, node in zip(problem.read_value.tolist(), problem.read_node.tolist(), strict=True):
            self._readers[value].append(node)
        self._uses: list[set[int]] = [set() for _ in range(problem.num_nodes)]
        for state, node in zip(problem.use_state.tolist(), problem.use_node.tolist(), strict=True):
            self._uses[node].add(state)
        self._parted = lru_cache(maxsize=1)(self._part)

    def reckon(self, assignment: Assignment) -> Reckoned:
        assert not assignment.replicas
        assert not assignment.recomputed
        parted, devices = self._parted(assignment.stage_of_node, assignment.num_stages), assignment.device_of_stage
        loads, peaks = [0.0] * len(self._rooms), [0] * len(self._rooms)
        compute = [
            sum((self._seconds[device][node] for node in nodes), 0.0)
            for device, nodes in zip(devices, parted.nodes, strict=True)
        ]
        moving = self._moving(parted.sends, devices)
        for stage, device in enumerate(devices):
            loads[device] += compute[stage] + sum(moving[stage])
            peaks[device] += parted.stage_bytes[stage]
        taken = sum(self._deliveries[devices[0]][node] for node in parted.nodes[0])
        latency_seconds = self._lone_batch(compute, moving, parted.sends, devices, taken)
        return Reckoned(loads=loads, peaks=peaks, latency_seconds=latency_seconds)

    def _part(self, stages: tuple[int, ...], count: int) -> _Parted:
        made = [stages[maker] if maker >= 0 else -1 for maker in self._maker]
        needed = [
            {stages[node] for node in readers} | ({count - 1} if returned else set())
            for readers, returned in zip(self._readers, self._returned, strict=True)
        ]
        nodes = [[node for node, own in enumerate(stages) if own == stage] for stage in range(count)]
        return _Parted(
            nodes=nodes,
            sends=self._sends(made, needed),
            stage_bytes=[self._bytes(stage, nodes[stage], made, needed) for stage in range(count)],
        )

    def fits(self, reckoned: Reckoned) -> bool:
        in_memory = all(peak <= room for peak, room in zip(reckoned.peaks, self._rooms, strict=True))
        return in_memory and max(reckoned.loads) < np.inf

    def value(self, reckoned: Reckoned, objective: Objective) -> float:
        if objective is Objective.MEMORY:
            shares = zip(reckoned.peaks, self._rooms, strict=True)
            return max(peak / room if room else np.inf for peak, room in shares if peak) if any(reckoned.peaks) else 0.0
        return max(reckoned.loads) if objective is Objective.THROUGHPUT else reckoned.latency_seconds

    def _sends(self, made: list[int], needed: list[set[int]]) -> list[tuple[int, int, int]]:
        """(value, sending stage, receiving stage)."""
        hops = []
        for value, (maker, takers) in enumerate(zip(made, needed, strict=True)):
            source = max(maker, 0)
            if self.problem.relay:
                hops += [(value, hop, hop + 1) for hop in range(source, max(takers, default=source))]
            else:
                hops += [(value, source, taker) for taker in sorted(takers - {source})]
        return hops

    def _moving(self, sends: list[tuple[int, int, int]], devices: Sequence[int]) -> list[tuple[float, float]]:
        """(in, out) of each stage: one latency each way, what enters, and of each value that leaves its slowest
        copy."""
        into, out = [0.0] * len(devices), [0.0] * len(devices)
        entered, left = [0.0] * len(devices), [dict[int, float]() for _ in devices]
        for value, source, target in sends:
            one, other = devices[source], devices[target]
            seconds, latency = self._sizes[value] * self._per_byte[one][other], self._latency[one][other]
            into[target], entered[target] = max(into[target], latency), entered[target] + seconds
            out[source], left[source][value] = max(out[source], latency), max(left[source].get(value, 0.0), seconds)
        return [(into[stage] + entered[stage], out[stage] + sum(left[stage].values())) for stage in range(len(devices))]

    def _lone_batch(
        self,
        compute: list[float],
        moving: list[tuple[float, float]],
        sends: list[tuple[int, int, int]],
        devices: Sequence[int],
        taken: float,
    ) -> float:
        """Stage by stage: after the stages of its device, and after those that it waits for.

        Inputs come once stage 0 has taken them, where nothing that it makes goes with them. One that reads nothing
        knows of the batch when the one before it does: from the first that it waits for itself.
        """
        ended, heard, busy = list[float](), [taken], [0.0] * len(self._rooms)
        for stage, device in enumerate(devices):
            sources = sorted({source for _, source, target in sends if target == stage})
            of_first = [value for value, source, target in sends if source == 0 and target == stage]
            waits = any(self._maker[value] >= 0 for value in of_first)
            there = [ended[source] if source or waits else taken for source in sources]
            heard.append(there[0] if there else heard[-1])
            start = max([busy[device], *(there or heard[-1:] if stage else [])])
            ended.append(start + moving[stage][0] + compute[stage])
            busy[device] = ended[stage] + moving[stage][1]
        return max(ended)

    def _bytes(self, stage: int, nodes: list[int], made: list[int], needed: list[set[int]]) -> int:
        entering, leaving, kept_values = [], [], set[int]()
        for value, (maker, takers) in enumerate(zip(made, needed, strict=True)):
            last = max(takers, default=-1)
            if maker < stage <= last and (self.problem.relay or stage in takers or stage == 0):
                entering.append(value)
            if maker == stage and (last > stage or self._returned[value]):
                leaving.append(value)
            if maker <= stage and (last > stage or self._returned[value]):
                kept_values.add(self._root[value])
        states = set().union(*(self._uses[node] for node in nodes))
        moved_bytes = sum(self._sizes[value] for value in (*entering, *leaving))
        state_bytes = sum(self._state_sizes[state] for state in states)
        return (
            state_bytes + self.problem.microbatches_in_flight * moved_bytes + self._live(nodes, entering, kept_values)
        )

    def _live(self, nodes: list[int], entering: list[int], kept_values: set[int]) -> int:
        """The most bytes of one microbatch at any node."""
        inside = set(nodes)
        last: dict[int, int] = {}
        for value, root in enumerate(self._root):
            touched = [node for node in (self._maker[value], *self._readers[value]) if node in inside]
            last[root] = max(last.get(root, -1), *touched) if touched else last.get(root, -1)
        last |= dict.fromkeys(kept_values, nodes[-1])
        own = [root for root, maker in enumerate(self._root_maker) if maker in inside]
        return max(
            sum(self._root_sizes[root] for root in own if self._root_maker[root] <= node <= last[root])
            + sum(self._sizes[value] for value in entering if last[self._root[value]] >= node)
            for node in nodes
        )
