"""Exact search over chains of ideals: a label holds when each tensor at an ideal's border is there.

What cutting planes leave open is closed here, or narrowed: their flows bound how a label can end, labels that another
beats in everything are dropped, and where too many are left, so is the worst part, and the bound says so. Labels
that are made have a budget: of what is left of it, each ideal leaves those behind it their share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.cost_graphs.single_pass.chain import ChainSpace, CheapestChain, Run
from planner.cost_graphs.single_pass.devices_of_runs import PassIncumbent
from planner.cost_graphs.single_pass.finish_times import FinishTimes
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Floats, Integers


class Labels(NamedTuple):
    """Labels [l] of one ideal: `finish` [l, border + 1], the last column being the latest end so far; `state` [l].

    A label comes from row `origin_row` of ideal `origin`, by block `way` on `device`, or by step -1 - way on class
    `unit_class`. Where devices are told apart, `left_bytes` and `idle_from` [l, d] are theirs; else d is 0.
    """

    finish: Floats
    left_bytes: Floats
    idle_from: Floats
    state: Integers
    device: Integers
    origin: Integers
    origin_row: Integers
    way: Integers
    unit_class: Integers

    def take(self, rows: Integers) -> Labels:
        return Labels._make(column[rows] for column in self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenChains:
    """Chains that cutting planes left open, and what is known of them: the cheapest against each of a few flows."""

    space: ChainSpace
    finish_times: FinishTimes
    flow_bounds: Sequence[CheapestChain]


@dataclass(slots=True, kw_only=True)
class Budget:
    """Labels that searches may yet make, one after another."""

    num_extensions: int


def search_labels(
    chains: OpenChains,
    incumbent: PassIncumbent,
    max_labels: int,
    budget: Budget,
    out_of_time: OutOfTime,
    *,
    devices_apart: bool,
) -> float:
    """A lower bound on all of the chains, the incumbent's seconds if proven. O(extensions * (border + labels)).

    With `devices_apart` each block waits for its device, which several may share as far as bytes allow. Does nothing
    where the budget is too small for a label of each ideal.
    """
    search = _Search(chains, incumbent, max_labels, budget, devices_apart=devices_apart)
    return search.run(out_of_time) if search.is_affordable else 0.0


class _Search:
    def __init__(
        self, chains: OpenChains, incumbent: PassIncumbent, max_labels: int, budget: Budget, *, devices_apart: bool
    ) -> None:
        space = chains.space
        self._space, self._finish_times, self._flow_bounds = space, chains.finish_times, chains.flow_bounds
        self._incumbent, self._max_labels, self._budget = incumbent, max_labels, budget
        self._arriving: list[list[Labels]] = [[] for _ in range(space.ideals.num_ideals)]
        self._settled: list[Labels | None] = [None] * space.ideals.num_ideals
        self._dropped = np.inf
        problem = space.graph.problem
        told_apart = devices_apart & ~problem.class_is_parallel[problem.class_of_device]
        self._devices = np.flatnonzero(told_apart)
        self._class_of_slot = problem.class_of_device[self._devices]
        self._room = problem.class_bytes[self._class_of_slot]
        self._blocks_after = _ways_by_origin(space.blocks.before, space.blocks.begin)
        self._steps_after = _ways_by_origin(space.ideals.step_from, space.ideals.step_begin)
        # [i] what a label of the ideal and of each behind it may lead to.
        self._ways_left: list[int] = np.cumsum(self._num_ways()[::-1])[::-1].tolist()

    @property
    def is_affordable(self) -> bool:
        return self._ways_left[0] <= self._budget.num_extensions

    def _num_ways(self) -> Integers:
        """[i] how many labels one of the ideal's may lead to."""
        space, num_ideals = self._space, self._space.ideals.num_ideals
        of_class = np.ones(space.graph.problem.num_classes, dtype=np.int64)
        if self._devices.size:
            of_class = np.bincount(self._class_of_slot, minlength=of_class.size)
        of_block = of_class[space.graph.serial[space.blocks.serial_class]]
        ways = np.bincount(space.blocks.before, of_block, num_ideals)
        steps = np.bincount(space.ideals.step_from, minlength=num_ideals) * space.graph.parallel.size
        return ways.astype(np.int64) + steps

    def run(self, out_of_time: OutOfTime) -> float:
        none = np.full(1, -1, dtype=np.int64)
        room = self._room[None, :]
        start = Labels(
            finish=np.zeros((1, 1)),
            left_bytes=room,
            idle_from=np.zeros(room.shape),
            state=none + 1,
            device=none,
            origin=none,
            origin_row=none,
            way=none,
            unit_class=none,
        )
        self._arriving[0].append(start)
        last = self._space.ideals.num_ideals - 1
        for ideal in range(last):
            if out_of_time():
                return 0.0
            self._settle(ideal)
            self._extend(ideal)
        return self._finish(last)

    def _settle(self, ideal: int) -> None:
        arrived, self._arriving[ideal] = self._arriving[ideal], []
        if not arrived:
            return
        labels = _joined(arrived)
        bound = self._bounds(ideal, labels)
        rows = np.flatnonzero(bound < self._incumbent.to_beat)
        rows = rows[np.argsort(bound[rows], kind="stable")]
        labels = labels.take(rows)
        used = self._space.states.used[labels.state]
        costs = np.concatenate([labels.finish, used, labels.idle_from, -labels.left_bytes], axis=1)
        most = min(self._max_labels, self._budget.num_extensions // max(1, self._ways_left[ideal]))
        front = _undominated(costs, bound[rows], most + 1)
        if front.size > most:
            self._dropped = min(self._dropped, float(bound[rows][front[most]]))
            front = front[:most]
        self._settled[ideal] = labels.take(front)

    def _bounds(self, ideal: int, labels: Labels) -> Floats:
        """[l] no chain that goes on from the label ends earlier."""
        lower = labels.finish[:, -1].copy()
        for flow_index, cheapest in enumerate(self._flow_bounds):
            crossing, open_share = self._finish_times.crossing_flow(flow_index, ideal)
            if open_share > 1e-6:
                ends = labels.finish[:, :-1] @ crossing + cheapest.behind[ideal, labels.state]
                np.maximum(lower, ends / open_share, out=lower)
        return lower

    def _extend(self, ideal: int) -> None:
        labels = self._settled[ideal]
        if labels is None or not labels.state.size:
            return
        for way, target in self._blocks_after[ideal]:
            if self._devices.size:
                self._extend_on_devices(ideal, labels, way, target)
            else:
                self._extend_by_block(ideal, labels, way, target)
        space, rows = self._space, np.arange(labels.state.size)
        for step, target in self._steps_after[ideal]:
            unit = int(space.ideals.step_unit[step])
            for device_class, finish in self._finish_times.after_unit(ideal, target, labels.finish, unit):
                arrived = _arrival(labels, finish, labels.state, ideal, rows, -1 - step)
                arrived.unit_class[:] = device_class
                self._arrive(target, arrived)

    def _extend_by_block(self, ideal: int, labels: Labels, way: int, target: int) -> None:
        blocks = self._space.blocks
        state = self._space.states.step[labels.state, blocks.serial_class[way]]
        rows = np.flatnonzero(state >= 0)
        if rows.size:
            seconds = float(blocks.seconds[way])
            finish, _ = self._finish_times.after_block(ideal, target, labels.finish[rows], np.zeros(rows.size), seconds)
            self._arrive(target, _arrival(labels, finish, state[rows], ideal, rows, way))

    def _extend_on_devices(self, ideal: int, labels: Labels, way: int, target: int) -> None:
        """On each device with room; of those that nothing runs on yet, the first of a class stands for all."""
        space = self._space
        device_class = int(space.graph.serial[space.blocks.serial_class[way]])
        inside = space.ideals.inside
        block_bytes = float(space.graph.unit_bytes[(inside[target] != 0) & (inside[ideal] == 0)].sum())
        fresh_before, room = np.zeros(labels.state.size, dtype=np.bool_), self._room
        for slot in np.flatnonzero(self._class_of_slot == device_class).tolist():
            fresh = (labels.idle_from[:, slot] == 0) & (labels.left_bytes[:, slot] == room[slot])
            rows = np.flatnonzero((labels.left_bytes[:, slot] >= block_bytes) & ~(fresh & fresh_before))
            fresh_before |= fresh
            if not rows.size:
                continue
            idle, seconds = labels.idle_from[rows, slot], float(space.blocks.seconds[way])
            finish, end = self._finish_times.after_block(ideal, target, labels.finish[rows], idle, seconds)
            arrived = _arrival(labels, finish, labels.state[rows], ideal, rows, way)
            arrived.left_bytes[:, slot] -= block_bytes
            arrived.idle_from[:, slot] = end
            arrived.device[:] = self._devices[slot]
            self._arrive(target, arrived)

    def _arrive(self, ideal: int, labels: Labels) -> None:
        self._budget.num_extensions -= labels.state.size
        self._arriving[ideal].append(labels)

    def _finish(self, last: int) -> float:
        """Offers what ends earlier than the incumbent, best first."""
        lower = self._dropped
        if self._arriving[last]:
            labels = _joined(self._arriving[last])
            ends = labels.finish[:, -1]
            for row in np.argsort(ends, kind="stable").tolist():
                if ends[row] >= self._incumbent.to_beat:
                    break
                self._incumbent.offer_runs(self._space.graph, self._runs(last, labels, row))
                if ends[row] < self._incumbent.to_beat:
                    lower = min(lower, float(ends[row]))
        return min(lower, self._incumbent.seconds)

    def _runs(self, ideal: int, labels: Labels, row: int) -> tuple[Run, ...]:
        runs: list[Run] = []
        while ideal:
            way = int(labels.way[row])
            if way < 0:
                unit = int(self._space.ideals.step_unit[-1 - way])
                runs.append(Run(units=(unit,), device_class=int(labels.unit_class[row]), seconds=0.0))
            else:
                run = self._space.run_of_block(way, ideal)
                runs.append(replace(run, device=int(labels.device[row])))
            ideal, row = int(labels.origin[row]), int(labels.origin_row[row])
            before = self._settled[ideal]
            assert before is not None
            labels = before
        return tuple(reversed(runs))


def _arrival(labels: Labels, finish: Floats, state: Integers, ideal: int, rows: Integers, way: int) -> Labels:
    nothing = np.full(rows.size, -1, dtype=np.int64)
    return Labels(
        finish=finish,
        left_bytes=labels.left_bytes[rows],
        idle_from=labels.idle_from[rows],
        state=state,
        device=nothing.copy(),
        origin=nothing + 1 + ideal,
        origin_row=rows,
        way=nothing + 1 + way,
        unit_class=nothing,
    )


def _joined(parts: Sequence[Labels]) -> Labels:
    return Labels._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _undominated(costs: Floats, bound: Floats, most: int) -> Integers:
    """Rows of the least bounds, `most` of them, that no other row is at most equal to in every column. What is, has a
    bound at most equal. O(rows * undominated * columns)."""
    _, first = np.unique(costs, axis=0, return_index=True)
    # In lexicographic order, where bounds are equal, nothing later dominates anything earlier.
    first = first[np.argsort(bound[first], kind="stable")]
    front_rows: list[int] = []
    front = np.empty((min(first.size, most), costs.shape[1]))
    for row in first.tolist():
        if len(front_rows) == most:
            break
        if not (front[: len(front_rows)] <= costs[row]).all(axis=1).any():
            front[len(front_rows)] = costs[row]
            front_rows.append(row)
    return np.array(front_rows, dtype=np.int64)


def _ways_by_origin(before: Integers, begin: Integers) -> list[list[tuple[int, int]]]:
    """[i] (way, ideal after it)."""
    by_origin: list[list[tuple[int, int]]] = [[] for _ in range(begin.size - 1)]
    after = np.repeat(np.arange(begin.size - 1), np.diff(begin))
    for way, (origin, target) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        by_origin[origin].append((way, target))
    return by_origin
