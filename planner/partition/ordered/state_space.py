"""The states of a walk through devices, spelled out: which devices are used when a segment starts, and what may follow.

For searches that have a value for each state and position; what only asks which positions can be reached goes through
the walk itself (least_over_walks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.partition.ordered.device_walks import NOTHING, DeviceWalks, Edge
from planner.partition.ordered.segment_loads import StageLinks
from planner.partition.problem import Integers

_Key = tuple[tuple[int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateSpace:
    """Step t goes from state `source[t]` to `target[t]`: a stage with the links of `labels[label[t]]`, on a device of
    unit `unit[t]`, at node `node[t]` of the walk.

    `depth[s]`: the most stages that precede state s; fewer precede each state that leads to it. A program ends in a
    state of `final`.
    """

    num_states: int
    starts: Integers
    final: Integers
    depth: Integers
    source: Integers
    target: Integers
    label: Integers
    unit: Integers
    node: Integers
    labels: tuple[StageLinks, ...]


def is_place_of_account(num_stages: int, max_stages: int, kept_microbatches: Callable[[int], int]) -> bool:
    """Whether it matters how many stages precede one: how many there may be, or what each keeps, depends on it."""
    return num_stages > 0 or len({kept_microbatches(stage) for stage in range(max_stages)}) > 1


def state_space(
    walks: DeviceWalks, *, num_stages: int, max_stages: int, kept_microbatches: Callable[[int], int]
) -> StateSpace:
    """`num_stages` 0 lets every number of stages end. `kept_microbatches`: of each stage. Linear in the steps.

    Where nothing asks how many stages precede a state, what is used in several numbers of stages is one state.
    """
    space = _Space(walks, num_stages, num_stages or max_stages, kept_microbatches)
    depth = 0
    while space.frontier and depth < space.max_stages:
        depth += 1
        space.add_stages(depth)
    return space.whole()


class _Space:
    def __init__(
        self, walks: DeviceWalks, num_stages: int, max_stages: int, kept_microbatches: Callable[[int], int]
    ) -> None:
        self.max_stages = max_stages
        self._capacity, self._is_between = walks.capacity, not walks.behind
        self._num_stages, self._kept_microbatches = num_stages, kept_microbatches
        self._counts_stages = is_place_of_account(num_stages, max_stages, kept_microbatches)
        self._edges: list[list[Edge]] = [[] for _ in range(walks.num_nodes)]
        for edge in walks.edges:
            self._edges[edge.node].append(edge)
        self._depths = list[int]()
        self._labels = dict[StageLinks, int]()
        self._steps = list[tuple[int, ...]]()
        none = (0,) * len(self._capacity)
        self._end = NOTHING if self._is_between else self._state(0)
        # By what is used and the node: the unit used last, and the state.
        self.frontier = {(_with_one_more(none, unit), node): (unit, self._state(0)) for unit, node in walks.starts}
        self._starts = [state for _, state in self.frontier.values()]
        self._known = {key: state for key, (_, state) in self.frontier.items()}

    def add_stages(self, depth: int) -> None:
        """The stages that are number `depth` of their walk, from 1."""
        reached = dict[_Key, tuple[int, int]]()
        if self._counts_stages:
            self._known = {}
        kept = self._kept_microbatches(depth - 1)
        may_go_on = self._is_between or depth < self.max_stages
        for (used, node), (unit, source) in self.frontier.items():
            for edge in self._edges[node]:
                target = self._end
                if edge.next_node == NOTHING:
                    if not self._may_end(depth):
                        continue
                elif may_go_on and (edge.unit == NOTHING or used[edge.unit] < self._capacity[edge.unit]):
                    key = _with_one_more(used, edge.unit), edge.next_node
                    if key not in self._known:
                        self._known[key] = self._state(depth)
                        reached[key] = edge.unit, self._known[key]
                    target = self._known[key]
                else:
                    continue
                label = self._labels.setdefault(edge.label._replace(kept_microbatches=kept), len(self._labels))
                self._steps.append((source, target, label, edge.unit if self._is_between else unit, node))
        self.frontier = reached

    def whole(self) -> StateSpace:
        final = [self._end]
        if self._is_between:
            final = [state for state, at in enumerate(self._depths) if at and self._may_end(at)]
        source, target, label, unit, node = np.array(self._steps, dtype=np.int64).reshape(-1, 5).T.copy()
        depths = _longest(np.array(self._depths, dtype=np.int64), source, target)
        return StateSpace(
            num_states=len(self._depths),
            starts=np.array(self._starts, dtype=np.int64),
            final=np.array(final, dtype=np.int64),
            depth=depths,
            source=source,
            target=target,
            label=label,
            unit=unit,
            node=node,
            labels=tuple(self._labels),
        )

    def _may_end(self, stages: int) -> bool:
        return not self._num_stages or stages == self._num_stages

    def _state(self, depth: int) -> int:
        self._depths.append(depth)
        return len(self._depths) - 1


def _longest(depths: Integers, source: Integers, target: Integers) -> Integers:
    """Each at least one more than those that lead to it."""
    while (shallow := depths[target] <= depths[source]).any():
        np.maximum.at(depths, target[shallow], depths[source[shallow]] + 1)
    return depths


def _with_one_more(used: tuple[int, ...], unit: int) -> tuple[int, ...]:
    return used if unit == NOTHING else (*used[:unit], used[unit] + 1, *used[unit + 1 :])
