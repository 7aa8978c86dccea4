"""The least bottleneck, or share of memory, over every chain of order ideals: whatever order the program runs in.

Tarnawski et al. (NeurIPS 2020), with evaluate's own loads and bytes: a stage is the difference of two ideals, and all
that it holds and moves follows from the two. Devices are walked through as for segments of one order. Exact over equal
links; elsewhere a bound, with what passes along one path of the program over the links between that path's stages.

For stages that hold bundles of the path hold them in the path's order. What one bundle of it gives to the next goes
from its stage to the next stage that holds any, whatever stages run between the two: over the link between their two
devices. The longer the path in work, the fewer stages hold none of it.

Where many stages hold none of it (many devices, little memory), it is more to know what the stage just before a stage
gives it at least, whatever the order. That is a bound of its own: a stage cannot know both, since the stage of the path
before it may not be the one just before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.partition.arcs import topological_order
from planner.partition.assignment import Assignment
from planner.partition.bounds.fewer_nodes import least_work_beside_most, without_nodes
from planner.partition.objective import Objective
from planner.partition.ordered.device_walks import DeviceWalks, by_kind, by_runs, by_visits
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.least_over_walks import MAX_WORDS, Walk, WalkLoads, least_over_walks, num_words
from planner.partition.ordered.many_devices import bounding_walks
from planner.partition.ordered.memory_tiers import everything_bytes
from planner.partition.ordered.priced_walks import priced_bound
from planner.partition.ordered.segment_loads import StageLinks, Transfers
from planner.partition.portfolio.ideal_stages import Ideals, IdealStages, all_ideals
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of

# Numbers of an ideal that are kept, of all ideals: its nodes, values and their readers.
MAX_ELEMENTS = 3e6
MAX_IDEALS = 1500
# Loads of stages between ideals, each on each device and between each of its neighbours: two seconds.
MAX_STAGE_LOADS = 3_000_000
# Words of ideals that are looked at: about two seconds.
MAX_STEPS = 300_000_000
# Segments that walks with prices look at: two seconds. Nodes of such walks: listing more takes a second.
MAX_PRICED_STEPS, MAX_PRICED_NODES = 400_000_000, 400
# Of the work, what may be left out where ideals are too many, in turn: each is a gap that stays.
_SHARES = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.04)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdealSolution:
    """`value`: what no chain of ideals undercuts, and the assignment's own if there is one and `exact`."""

    assignment: Assignment | None
    value: float
    exact: bool


def least_over_ideals(
    problem: PartitionProblem,
    bundles: Bundles,
    objective: Objective,
    *,
    num_stages: int = 0,
    limit: float = np.inf,
    effort: float = 1.0,
    unlinked: Booleans | None = None,
) -> IdealSolution | None:
    """Of values below `limit`; None where that is too much to search. For throughput and memory. `unlinked` [values]:
    those that may travel over any link."""
    size = problem.num_nodes + problem.num_values + problem.read_value.size
    ideals = all_ideals(bundles, int(min(MAX_IDEALS, MAX_ELEMENTS * effort / size)))
    if ideals is None:
        return None
    hosts, walks = hosts_of(problem), [by_kind(problem, hosts_of(problem))]
    if objective is Objective.THROUGHPUT:
        able = bounding_walks(problem, hosts, ideals.count)
        walks += [able.with_stages_aside()] if able and able.behind else []
    if num_words(walks[0], ideals.count) > MAX_WORDS:
        return None
    stages = IdealStages(problem, bundles, ideals)
    starts, ends = stages.within(limit if objective is Objective.THROUGHPUT else np.inf)
    affordable = MAX_STAGE_LOADS * effort / max(1, starts.size)
    if len(_labels(walks)) > affordable:
        return None
    priced: list[DeviceWalks] = []
    if objective is Objective.THROUGHPUT and hosts.count > 1 and np.isfinite(limit):
        priced += [by_visits(hosts)] if hosts.num_states_by_host <= MAX_PRICED_NODES else []
        priced += [runs] if (runs := by_runs(hosts)) else []
    each = (one.with_stages_aside() for one in priced)
    visits = next((one for one in each if len(_labels([*walks, one])) <= affordable), None)
    unlinked = np.zeros(problem.num_values, np.bool_) if unlinked is None else unlinked

    def table_of(labels: list[StageLinks], near: Near) -> WalkLoads:
        return WalkLoads(
            index_of_label={label: at for at, label in enumerate(labels)},
            num_positions=ideals.count,
            starts=starts,
            ends=ends,
            # Of one layout: a kernel is compiled for each that it is given.
            loads=np.ascontiguousarray(_loads(problem, stages, labels, starts, ends, objective, near)),
            kind_of_label=np.array([hosts.kind_of_device[label.own] for label in labels], dtype=np.int64),
            offset=np.zeros(problem.num_devices, dtype=np.int64),
        )

    path = long_path(problem, bundles, ideals, unlinked)
    near_on_path = Near(path.given_bytes[starts], path.given_bytes[ends], path.is_held(starts, ends))
    table = table_of(_labels([*walks, visits] if visits else walks), near_on_path)
    least, steps = 0.0, int(MAX_STEPS * effort)
    for one in walks:
        if visits and one.behind:
            least = priced_bound(visits, table, least=least, limit=limit, max_steps=MAX_PRICED_STEPS * effort)
        solution = least_over_walks(one, table, least=least, limit=limit, num_stages=num_stages, max_steps=steps)
        least = max(least, solution.value)
    if visits and not walks[-1].behind:
        least = priced_bound(visits, table, least=least, limit=limit, max_steps=MAX_PRICED_STEPS * effort)
    plain = next((one for one in priced if len(_labels([one])) <= affordable), None)
    # Of a program that is one path, both know the same.
    if plain and least < limit and not near_on_path.is_linked.all():
        ones = np.ones(starts.size, dtype=np.bool_)
        beside = table_of(_labels([plain]), Near(*stages.between_neighbours(starts, ends, unlinked), ones))
        least = priced_bound(plain, beside, least=least, limit=limit, max_steps=MAX_PRICED_STEPS * effort)
    exact = solution.is_least and (hosts.count == 1 or objective is Objective.MEMORY) and problem.training is None
    return IdealSolution(assignment=_assignment(bundles, ideals, solution), value=least, exact=exact)


def _labels(walks: list[DeviceWalks]) -> list[StageLinks]:
    return list(dict.fromkeys(edge.label for one in walks for edge in one.edges))


def bound_by_fewer_nodes(
    problem: PartitionProblem, bundles: Bundles, limit: float = np.inf, effort: float = 1.0
) -> float:
    """Of throughput: the least over ideals once enough work beside other work is left out; 0 if that is too much."""
    for share in _SHARES if bundles.count <= MAX_IDEALS else ():
        left_out = least_work_beside_most(problem, bundles, share)
        fewer = without_nodes(problem, left_out[bundles.bundle_of_node])
        solution = least_over_ideals(
            fewer.problem,
            bundles_of(fewer.problem),
            Objective.THROUGHPUT,
            limit=limit,
            effort=effort,
            unlinked=fewer.stands_in,
        )
        if solution is not None:
            return min(solution.value, limit)
    return 0.0


def _assignment(bundles: Bundles, ideals: Ideals, walk: Walk) -> Assignment | None:
    if not walk.devices:
        return None
    stage_of_bundle = len(walk.devices) - ideals.members[list(walk.boundaries[1:])].sum(axis=0)
    return bundles.assignment(stage_of_bundle, walk.devices)


def _loads(
    problem: PartitionProblem,
    stages: IdealStages,
    labels: list[StageLinks],
    starts: Integers,
    ends: Integers,
    objective: Objective,
    near: Near,
) -> Floats:
    """[labels, stages]; inf where memory does not suffice, the device cannot run a node, or the label is of stages
    aside where this one is none, or the other way round."""
    device = np.array([label.own for label in labels], dtype=np.int64)
    seconds, memory = stages.seconds(device, starts, ends), problem.device_memory_bytes[device].astype(np.float64)
    if objective is Objective.THROUGHPUT:
        between, transfers = stages.exchanges(starts, ends), Transfers(problem, labels, back=False)
        seconds += transfers.received_seconds(between.received_bytes, near.received_bytes, between.receives)
        seconds += transfers.sent_seconds(between.sent_bytes, near.sent_bytes, between.sends)
        # What is relayed goes through each stage.
        is_linked = near.is_linked | problem.relay
        for index, label in enumerate(labels):
            if label.is_aside or label.is_linked:
                seconds[index, is_linked if label.is_aside else ~is_linked] = np.inf
        if memory.min() >= everything_bytes(problem):
            return seconds
    needed = stages.peak_bytes(starts, ends)
    fits = (needed <= memory[:, None]) & np.isfinite(seconds)
    if objective is Objective.MEMORY:
        seconds = needed / np.maximum(memory[:, None], 1.0)
    return np.where(fits, seconds, np.inf)


class Near(NamedTuple):
    """By stage: bytes that come over the link into it, and that go over the one out of it; False if it is aside."""

    received_bytes: Floats
    sent_bytes: Floats
    is_linked: Booleans


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LongPath:
    """By ideal: how many bundles of the path it holds, and the bytes that the last of these gives to the one after."""

    num_held: Integers
    given_bytes: Floats

    def is_held(self, starts: Integers, ends: Integers) -> Booleans:
        """[stages] whether the stage holds any of the path; the program's last stage counts as if it did."""
        on_path: Booleans = (self.num_held[ends] > self.num_held[starts]) | (ends == self.num_held.size - 1)
        return on_path


def long_path(problem: PartitionProblem, bundles: Bundles, ideals: Ideals, unlinked: Booleans) -> LongPath:
    """The path of most work; of equal ones, that of the larger values. `unlinked` [values] count for no bytes.
    O(reads + arcs)."""
    bytes_of_arc = _bytes_of_arcs(problem, bundles, unlinked)
    seconds = np.bincount(bundles.bundle_of_node, problem.work_seconds.min(axis=0), bundles.count).tolist()
    longest = [(0.0, 0.0)] * bundles.count
    before = [-1] * bundles.count
    order = topological_order(bundles.before, bundles.after)
    for bundle in order:
        for producer in bundles.before[bundle]:
            work, size = longest[producer]
            reached = work, size + bytes_of_arc.get((producer, bundle), 0.0)
            if before[bundle] < 0 or reached > longest[bundle]:
                longest[bundle], before[bundle] = reached, producer
        work, size = longest[bundle]
        longest[bundle] = work + seconds[bundle], size
    path = [max(order, key=lambda bundle: longest[bundle])]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    path.reverse()
    num_held = ideals.members[:, path].sum(axis=1)
    sizes = [bytes_of_arc.get((producer, reader), 0.0) for producer, reader in pairwise(path)]
    return LongPath(num_held=num_held, given_bytes=np.array([0.0, *sizes, 0.0])[num_held])


def _bytes_of_arcs(problem: PartitionProblem, bundles: Bundles, unlinked: Booleans) -> dict[tuple[int, int], float]:
    """By pair of bundles: the distinct values that the one makes and the other reads."""
    made = problem.value_producer[problem.read_value]
    counted = (made >= 0) & ~unlinked[problem.read_value]
    value, reader = problem.read_value[counted], bundles.bundle_of_node[problem.read_node[counted]]
    pairs = np.unique(np.stack([value, bundles.bundle_of_node[made[counted]], reader]), axis=1)
    bytes_of_arc: dict[tuple[int, int], float] = {}
    for one, producer, taker in pairs.T.tolist():
        bytes_of_arc[producer, taker] = bytes_of_arc.get((producer, taker), 0.0) + float(problem.value_bytes[one])
    return bytes_of_arc
