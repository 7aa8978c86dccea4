"""The least bottleneck, or share of memory, over chains of positions in a program, from the costs of their stages.

Positions are order ideals (`ideal_stages`) or groups of them (`ideal_groups`); devices are walked through as for
segments of one order. Over equal links the walks are exact. Elsewhere they are a bound, with what passes along a path
of the program over the links between that path's stages.

Where many stages hold none of the path (many devices, little memory), it is more to know what the stage just before a
stage gives it at least, whatever the order. That is a bound of its own: a stage cannot know both, since the stage of
the path before it may not be the one just before it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from planner.partition.objective import Objective
from planner.partition.ordered.device_walks import DeviceWalks, by_kind, by_runs, by_visits
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.least_over_walks import MAX_WORDS, Walk, WalkLoads, least_over_walks, num_words
from planner.partition.ordered.many_devices import bounding_walks
from planner.partition.ordered.memory_tiers import everything_bytes
from planner.partition.ordered.priced_walks import priced_bound
from planner.partition.ordered.segment_loads import StageLinks, Transfers
from planner.partition.portfolio.ideal_stages import Exchanges
from planner.partition.portfolio.paths import Path
from planner.partition.problem import Booleans, Floats, Integers, PartitionProblem

# Words of positions that are looked at: about two seconds.
MAX_STEPS = 300_000_000
# Segments that walks with prices look at: two seconds. Nodes of such walks: listing more takes a second.
MAX_PRICED_STEPS, MAX_PRICED_NODES = 400_000_000, 400


class Stages(Protocol):
    """Pairs of indexes of positions, `starts` and `ends`. Positions ascend with what they hold, from nothing to all."""

    @property
    def count(self) -> int:
        """Of positions."""

    def within(self, limit: float) -> tuple[Integers, Integers]:
        """(starts, ends) of stages that some device can run within `limit` seconds; ascending."""

    def seconds(self, devices: Integers, starts: Integers, ends: Integers) -> Floats:
        """[devices, stages] of work; inf where the device cannot run all of it."""

    def exchanges(self, starts: Integers, ends: Integers) -> Exchanges: ...

    def num_held(self, path: Path) -> Integers:
        """[positions] bundles of the path."""

    def between_neighbours(self, starts: Integers, ends: Integers, unlinked: Booleans) -> tuple[Floats, Floats] | None:
        """By stage, bytes that the stage before gives it at least, and those that it gives to the one behind it, None
        where that is not known. `unlinked` [values] count for none."""

    def peak_bytes(self, starts: Integers, ends: Integers) -> Floats:
        """But for what is saved for backward passes."""


class Near(NamedTuple):
    """By stage: bytes that come over the link into it, and that go over the one out of it; False if it is aside."""

    received_bytes: Floats
    sent_bytes: Floats
    is_linked: Booleans


class Least(NamedTuple):
    """`value`: nothing below it is possible. `walk`: of the last walks; `is_one_host`: it may be a plan."""

    value: float
    walk: Walk
    is_one_host: bool


def least_over_stages(
    problem: PartitionProblem,
    stages: Stages,
    path: Path,
    objective: Objective,
    *,
    unlinked: Booleans,
    num_stages: int = 0,
    least: float = 0.0,
    limit: float = np.inf,
    effort: float = 1.0,
    max_loads: float = np.inf,
) -> Least | None:
    """Of values below `limit` and, as far as they matter, not below `least`, which holds; None where that is too much
    to search. `unlinked` [values]: those that may travel over any link. `max_loads` of stages, each on each device and
    between each of its neighbours."""
    hosts = hosts_of(problem)
    walks = [by_kind(problem, hosts)]
    if objective is Objective.THROUGHPUT:
        able = bounding_walks(problem, hosts, stages.count)
        walks += [able.with_stages_aside()] if able and able.behind else []
    if num_words(walks[0], stages.count) > MAX_WORDS:
        return None
    starts, ends = stages.within(limit if objective is Objective.THROUGHPUT else np.inf)
    affordable = max_loads / max(1, starts.size)
    if len(_labels(walks)) > affordable:
        return None
    priced: list[DeviceWalks] = []
    if objective is Objective.THROUGHPUT and hosts.count > 1 and np.isfinite(limit):
        priced += [by_visits(hosts)] if hosts.num_states_by_host <= MAX_PRICED_NODES else []
        priced += [runs] if (runs := by_runs(hosts)) else []
    each = (one.with_stages_aside() for one in priced)
    visits = next((one for one in each if len(_labels([*walks, one])) <= affordable), None)

    def table_of(labels: list[StageLinks], near: Near) -> WalkLoads:
        return WalkLoads(
            index_of_label={label: at for at, label in enumerate(labels)},
            num_positions=stages.count,
            starts=starts,
            ends=ends,
            # Of one layout: a kernel is compiled for each that it is given.
            loads=np.ascontiguousarray(_loads(problem, stages, labels, starts, ends, objective, near)),
            kind_of_label=np.array([hosts.kind_of_device[label.own] for label in labels], dtype=np.int64),
            offset=np.zeros(problem.num_devices, dtype=np.int64),
        )

    near_on_path = _near_on_path(stages.num_held(path), path, starts, ends)
    table = table_of(_labels([*walks, visits] if visits else walks), near_on_path)
    steps, max_priced_steps = int(MAX_STEPS * effort), MAX_PRICED_STEPS * effort
    for one in walks:
        if visits and one.behind:
            least = priced_bound(visits, table, least=least, limit=limit, max_steps=max_priced_steps)
        walk = least_over_walks(one, table, least=least, limit=limit, num_stages=num_stages, max_steps=steps)
        least = max(least, walk.value)
    if visits and not walks[-1].behind:
        least = priced_bound(visits, table, least=least, limit=limit, max_steps=max_priced_steps)
    plain = next((one for one in priced if len(_labels([one])) <= affordable), None)
    # Of a program that is one path, both know the same.
    if plain and least < limit and not near_on_path.is_linked.all():
        between = stages.between_neighbours(starts, ends, unlinked)
        if between is not None:
            beside = table_of(_labels([plain]), Near(*between, np.ones(starts.size, dtype=np.bool_)))
            least = priced_bound(plain, beside, least=least, limit=limit, max_steps=max_priced_steps)
    return Least(value=least, walk=walk, is_one_host=hosts.count == 1)


def _near_on_path(num_held: Integers, path: Path, starts: Integers, ends: Integers) -> Near:
    """The program's last stage counts as if it held some of the path."""
    given = path.given_bytes[num_held]
    is_held = (num_held[ends] > num_held[starts]) | (ends == num_held.size - 1)
    return Near(given[starts] * is_held, given[ends] * is_held, is_held)


def _labels(walks: list[DeviceWalks]) -> list[StageLinks]:
    return list(dict.fromkeys(edge.label for one in walks for edge in one.edges))


def _loads(
    problem: PartitionProblem,
    stages: Stages,
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
        # Of groups of ideals it may be the neighbour's that are known better.
        received = np.maximum(between.received_bytes, near.received_bytes)
        sent = np.maximum(between.sent_bytes, near.sent_bytes)
        seconds += transfers.received_seconds(received, near.received_bytes, between.receives | (received > 0))
        seconds += transfers.sent_seconds(sent, near.sent_bytes, between.sends | (sent > 0))
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
