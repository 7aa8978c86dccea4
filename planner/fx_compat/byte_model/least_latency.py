"""The groups and devices of least latency for a lone batch that a search within its steps finds, within memory.

Serves two modes of torch.fx's partitioner: "cost_aware" begins from clusters along long paths, "kl_based" from the
size-based groups too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.fx_compat.byte_model.edge_zeroing import cluster_start
from planner.fx_compat.byte_model.exhaustive_packing import any_fit
from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.group_operations import (
    grouped_latency,
    groups_by_level,
    groups_of_one,
)
from planner.fx_compat.byte_model.operation_graph import OperationGraph
from planner.fx_compat.byte_model.path_search import LEAST_GAIN, Steps, improve, iterate, least_latency
from planner.fx_compat.byte_model.slack_groups import groups_by_slack
from planner.fx_compat.byte_model.transfer_problem import Occupancy, TransferProblem, transfer_problem

# (latency, device by operation)
Placement = tuple[float, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """Better ones compare less: quicker, then within memory even group by group, then fewer groups."""

    latency: float
    exceeding_bytes: int
    placed: PlacedGroups

    @property
    def rank(self) -> tuple[float, int, int]:
        return (self.latency, self.exceeding_bytes, len(self.placed.groups))


def least_latency_groups(
    graph: OperationGraph,
    seconds: Sequence[float],
    bytes_per_second: float,
    capacities: Sequence[int],
    starts: Sequence[PlacedGroups],
    num_steps: int,
) -> PlacedGroups | None:
    """`seconds` by node; `starts` are tried first. None if nothing fits. About `num_steps` visits of an operation."""
    problem = transfer_problem(graph, seconds, bytes_per_second, capacities)
    goal, steps = least_latency(problem), Steps(num_steps)
    placements: list[Placement] = []
    for start in _starts(problem, starts):
        occupancy = Occupancy(problem, start)
        if occupancy.fitting():
            placements.append((improve(problem, occupancy, steps, goal), list(occupancy.device)))
            if placements[-1][0] <= goal * (1 + LEAST_GAIN):
                break
    if not placements:
        packed = any_fit(problem)
        if packed is None:
            return None
        occupancy = Occupancy(problem, packed)
        placements.append((improve(problem, occupancy, steps, goal), list(occupancy.device)))
    placements.sort(key=lambda placement: placement[0])
    placements.insert(0, iterate(problem, placements, steps, goal))
    best: _Candidate | None = None
    for placement in placements:
        # Groups are never quicker than single operations on the same devices.
        if best is None or placement[0] < best.latency:
            best = _better(best, _grouped(graph, problem, seconds, bytes_per_second, placement))
    assert best is not None
    return best.placed


def _starts(problem: TransferProblem, offered: Sequence[PlacedGroups]) -> Iterator[list[int]]:
    for placed in offered:
        device_of_node = {
            node: at[0] for group, at in zip(placed.groups, placed.devices, strict=True) for node in group
        }
        yield [device_of_node[node] for node in problem.nodes]
    clusters = cluster_start(problem)
    if clusters is not None:
        yield clusters


def _better(one: _Candidate | None, other: _Candidate) -> _Candidate:
    return other if one is None or other.rank < one.rank else one


def _grouped(
    graph: OperationGraph,
    problem: TransferProblem,
    seconds: Sequence[float],
    bytes_per_second: float,
    placement: Placement,
) -> _Candidate:
    value, device = placement
    device_of_node = [0] * len(graph.inputs)
    for node, at in zip(problem.nodes, device, strict=True):
        device_of_node[node] = at
    limit = value * (1 + LEAST_GAIN)

    def candidate(placed: PlacedGroups) -> _Candidate:
        latency = grouped_latency(graph, seconds, bytes_per_second, placed)
        exceeding = _exceeding_bytes(graph, placed, problem.capacities)
        return _Candidate(latency=value if latency <= limit else latency, exceeding_bytes=exceeding, placed=placed)

    best = candidate(groups_by_level(graph, device_of_node))
    if best.latency > limit:
        by_slack = groups_by_slack(graph, problem, bytes_per_second, device, limit)
        best = _better(best, candidate(by_slack)) if by_slack is not None else best
    if best.latency > limit:
        best = _better(best, candidate(groups_of_one(graph, device_of_node)))
    return best


def _exceeding_bytes(graph: OperationGraph, placed: PlacedGroups, capacities: Sequence[int]) -> int:
    """Were every group on a device to hold its own copies."""
    left = list(capacities)
    for group, devices in zip(placed.groups, placed.devices, strict=True):
        for device in devices:
            left[device] -= graph.group_bytes(group)
    return -sum(room for room in left if room < 0)
