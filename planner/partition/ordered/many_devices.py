"""Segments of one order onto many devices: the walks through them that can be afforded, for a plan and for a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from planner.partition.ordered.device_walks import DeviceWalks, by_device, by_kind, by_runs, host_by_host
from planner.partition.ordered.host_states import can_be_searched, labels_of_hosts, least_over_hosts
from planner.partition.ordered.hosts import Hosts, hosts_of
from planner.partition.ordered.least_over_walks import MAX_WORDS, Walk, WalkLoads, least_over_walks, num_words
from planner.partition.ordered.positions import furthest_end
from planner.partition.ordered.program_pass import kept_by_stage
from planner.partition.ordered.segment_loads import SegmentLoads, StageLinks, only_neighbours_exchange
from planner.partition.ordered.segments import Segments
from planner.partition.ordered.state_space import is_place_of_account
from planner.partition.problem import Integers, PartitionProblem

# Elements of the table of loads: 200 MB.
MAX_LOADS = 25_000_000
# Units of `by_device`, and edges of `host_by_host`: beyond that, listing them takes a second.
MAX_UNITS = 24
_MAX_STEPS = 50_000
# Of a host that may be entered several times, in turn.
_PARTS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyDevices:
    """`layouts`: (boundaries, devices), which may not all be within the limit. `value`: no layout over the positions is
    below it, or below the limit."""

    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    value: float


def over_many_devices(
    problem: PartitionProblem,
    positions: Integers,
    *,
    limit: float = np.inf,
    num_stages: int = 0,
) -> ManyDevices | None:
    """None where devices are of too many kinds, or positions too many.

    Exact, with a layout of that value, over equal links; and where only neighbours exchange or tensors are relayed, for
    few devices, or where the devices of the bound's walk exist.
    """
    hosts, kept_microbatches = hosts_of(problem), kept_by_stage(problem, num_stages)
    places = is_place_of_account(num_stages, problem.num_devices, kept_microbatches)
    bounding = bounding_walks(problem, hosts, positions.size)
    exact = problem.relay or only_neighbours_exchange(problem)
    planning = list[DeviceWalks]()
    # Plans that pay what skips stages are of windows on hosts.
    if not (places or (bounding and bounding.are_plans) or (np.isfinite(limit) and not exact)):
        planning = planning_walks(hosts, positions.size)
    if not (bounding or planning):
        return None
    labels = [edge.label for one in (*([bounding] if bounding else []), *planning) for edge in one.edges]
    table = walk_loads(problem, hosts, labels, positions, kept_microbatches, limit)
    if table is None:
        return None
    value, high, is_over, best_walks = 0.0, limit, False, list[Walk]()
    if bounding:
        best_walks = [least_over_walks(bounding, table, limit=limit, num_stages=num_stages)]
        value = best_walks[0].value
        # Nothing is below the limit, or the bound's walk is a plan.
        is_over = not best_walks[0].boundaries or bool(best_walks[0].devices and bounding.behind)
    for walks in planning if not is_over else ():
        best_walks.append(least_over_walks(walks, table, limit=high))
        high = min(high, best_walks[-1].value) if best_walks[-1].devices else high
    if not is_over and value < high and exact and can_be_searched(hosts, positions.size):
        table = walk_loads(problem, hosts, labels_of_hosts(hosts).values(), positions, kept_microbatches, high)
        if table is not None:
            best_walks.append(least_over_hosts(hosts, table, least=value, limit=high, num_stages=num_stages))
            value = max(value, best_walks[-1].value)
    return ManyDevices(
        layouts=tuple(
            (tuple(positions[list(walk.boundaries)].tolist()), walk.devices) for walk in best_walks if walk.devices
        ),
        value=value,
    )


def affordable(problem: PartitionProblem, num_positions: int, max_words: float = np.inf) -> bool:
    """Whether walks give a bound, within so many words."""
    bounding = bounding_walks(problem, hosts_of(problem), num_positions)
    return bounding is not None and num_words(bounding, num_positions) <= max_words


def bounding_walks(problem: PartitionProblem, hosts: Hosts, num_positions: int) -> DeviceWalks | None:
    """Those of the best bound that can be afforded."""
    walks = [by_kind(problem, hosts)]
    if hosts.count > 1:
        exact, runs = [by_device(hosts)] if hosts.num_units <= MAX_UNITS else [], by_runs(hosts)
        walks = [*exact, *([runs] if runs else []), *walks]
    return next(iter(_within_words(walks, num_positions)), None)


def planning_walks(hosts: Hosts, num_positions: int) -> list[DeviceWalks]:
    """Those of plans that can be afforded, from host to host."""
    if hosts.count == 1 or hosts.num_steps_by_host > _MAX_STEPS:
        return []
    plans = [walks for parts in _PARTS if (walks := host_by_host(hosts, parts)) is not None]
    return _within_words(plans, num_positions)


def _within_words(walks: list[DeviceWalks], num_positions: int) -> list[DeviceWalks]:
    return [one for one in walks if num_words(one, num_positions) <= MAX_WORDS]


def walk_loads(
    problem: PartitionProblem,
    hosts: Hosts,
    labels: Iterable[StageLinks],
    positions: Integers,
    kept_microbatches: Callable[[int], int],
    limit: float,
) -> WalkLoads | None:
    count_of_stage = [kept_microbatches(stage) for stage in range(problem.num_devices)]
    labels = list(dict.fromkeys(labels))
    variants = [label._replace(kept_microbatches=count) for count in dict.fromkeys(count_of_stage) for label in labels]
    behind = np.arange(1, positions.size)
    last = np.searchsorted(positions, furthest_end(problem, limit)[positions[:-1]], side="right")
    counts = np.maximum(last - behind, 0)
    if len(variants) * counts.sum() > MAX_LOADS:
        return None
    segments, stage_loads = Segments(problem), SegmentLoads(problem, variants)
    starts = np.repeat(np.arange(behind.size), counts)
    ends = behind[starts] + np.arange(starts.size) - np.repeat(np.cumsum(counts) - counts, counts)
    loads = np.empty((len(variants), starts.size))
    for start, own in enumerate(np.split(ends, np.cumsum(counts)[:-1])):
        if own.size:
            at = np.searchsorted(starts, start)
            row = segments.row(int(positions[start]), int(positions[own[-1]]))
            loads[:, at : at + own.size] = stage_loads.seconds(row, positions[own])
    place = {count: at for at, count in enumerate(dict.fromkeys(count_of_stage))}
    return WalkLoads(
        index_of_label={label: at for at, label in enumerate(labels)},
        num_positions=positions.size,
        starts=starts,
        ends=ends,
        loads=loads,
        kind_of_label=np.array([hosts.kind_of_device[label.own] for label in variants], dtype=np.int64),
        offset=np.array([place[count] * len(labels) for count in count_of_stage], dtype=np.int64),
    )
