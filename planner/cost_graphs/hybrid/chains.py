"""Whether some chain of stages keeps every stage within a limit, and which.

A stage is the difference of two order ideals. Chains are built from the pipeline's end, since what a stage keeps
depends on the copies behind it. Behind an ideal only two numbers matter: the devices and the copies that are used, and
fewer of either is never worse; so of a stage at each degree only the fewest copies count that keep it within the limit
and the memory. O(pairs of ideals * degrees * used devices).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.cost_graphs.hybrid.alternatives import FITS, ROUNDING, UNDECIDED, choose
from planner.cost_graphs.hybrid.ideal_sums import ALWAYS, PARAMETERS, PER_MICROBATCH, QUICKEST, SECONDS, Costs, Tables
from planner.partition.lattice import Words
from planner.partition.placement.compiled import compiled
from planner.partition.problem import Integers

# Shares of the limit: room for rounding in sums.
SLACK = 1e-9
NEVER = np.iinfo(np.int64).max
# Columns of the steps that lead on from a state.
NEXT, DEGREE, COPIES = 0, 1, 2


class Room(NamedTuple):
    """How many microbatches a stage may keep, [pairs of ideals, degrees, numbers of copies]: `least` at lower limits,
    `most` at higher ones, and `now`, -1 where nobody asked. Of a single pair where they would take too much memory."""

    least: Integers
    most: Integers
    now: Integers


class Stage(NamedTuple):
    """Of one copy that gets every microbatch: seconds, seconds to sum gradients with each further copy, bytes for each
    microbatch in flight, and bytes that are always held; the least of any alternatives, and those of the quickest."""

    least_seconds: float
    least_sum: float
    quickest_seconds: float
    quickest_sum: float
    least_held: float
    least_always: float
    quickest_held: float
    quickest_always: float


@compiled
def _is_inside(words: Words, ideal: int, node: int) -> bool:
    return bool((words[ideal, node >> 6] >> np.uint64(node & 63)) & np.uint64(1))


@compiled
def _holds(words: Words, outer: int, inner: int) -> bool:
    strange = np.uint64(0)
    for word in range(words.shape[1]):
        strange |= words[inner, word] & ~words[outer, word]
    return bool(strange == 0)


@compiled
def _crossing(costs: Costs, tables: Tables, inner: int, outer: int) -> tuple[Integers, int, int]:
    """The cut edges of the stage between two ideals, the entering ones first; how many enter, how many there are."""
    first, last = tables.cut_first[inner], tables.cut_first[inner + 1]
    edges = np.empty(last - first + tables.cut_first[outer + 1] - tables.cut_first[outer], dtype=np.int64)
    entering = 0
    for position in range(first, last):
        edge = tables.cut_edge[position]
        if _is_inside(tables.words, outer, costs.edge_target[edge]):
            edges[entering] = edge
            entering += 1
    count = entering
    for position in range(tables.cut_first[outer], tables.cut_first[outer + 1]):
        edge = tables.cut_edge[position]
        if not _is_inside(tables.words, inner, costs.edge_source[edge]):
            edges[count] = edge
            count += 1
    return edges, entering, count


@compiled
def choose_in_stage(
    costs: Costs,
    tables: Tables,
    inner: int,
    outer: int,
    degree: int,
    copies: int,
    in_flight: int,
    limit_seconds: float,
    nodes: Integers,
    choice: Integers,
) -> tuple[int, int]:
    """What `choose` answers for the stage between two ideals, and to how many of `nodes` it gave one of `choice`."""
    num_nodes, width = costs.seconds.shape[1], costs.seconds.shape[2]
    item_of_node = np.full(num_nodes, -1, dtype=np.int64)
    count = 0
    for node in range(num_nodes):
        if _is_inside(tables.words, outer, node) and not _is_inside(tables.words, inner, node):
            nodes[count], item_of_node[node] = node, count
            count += 1
    seconds, item_bytes = np.empty((count, width)), np.empty((count, width))
    per_parameter = 4 * (copies - 1) / (costs.microbatches * costs.bandwidth)
    for item in range(count):
        node = nodes[item]
        for alternative in range(width):
            seconds[item, alternative] = (
                costs.seconds[degree, node, alternative]
                + per_parameter * costs.parameter_bytes[degree, node, alternative]
            )
            item_bytes[item, alternative] = (
                costs.held_per_microbatch[degree, node, alternative] * in_flight
                + costs.held_always[degree, node, alternative]
            )
    edges, entering, crossing = _crossing(costs, tables, inner, outer)
    shared = 0.0
    for index in range(crossing):
        edge = edges[index]
        shared += 2 * costs.edge_bytes[edge] / costs.bandwidth
        for alternative in range(width):
            if index < entering:
                item, extra = item_of_node[costs.edge_target[edge]], costs.entering_bytes[degree, edge, alternative]
            else:
                item, extra = item_of_node[costs.edge_source[edge]], costs.leaving_bytes[degree, edge, alternative]
            seconds[item, alternative] += 2 * extra / costs.bandwidth
    return choose(seconds, item_bytes, limit_seconds * copies - shared, costs.memory_bytes, choice), count


@compiled
def chains_within(
    costs: Costs, tables: Tables, limit_seconds: float, used_copies: Integers, steps: Integers, room: Room
) -> int:
    """Fills `used_copies` [i, devices] with the fewest copies behind ideal i, `steps` [i, devices, 3] with the first
    stage behind it, and `room.now`. Returns how often a choice of alternatives was given up."""
    last, num_devices = len(tables.work) - 1, costs.num_devices
    slack = limit_seconds * (1 + SLACK)
    undecided = 0
    is_kept = room.now.shape[0] > 1
    labels = np.empty(num_devices + 1, dtype=np.int64)
    # By number of copies: the most microbatches that may be in flight, -1 where that is not known yet.
    in_flight = np.empty(len(costs.copies), dtype=np.int64)
    used_copies[last, 0] = 0
    for outer in range(last, 0, -1):
        num_labels, fewest = 0, NEVER
        for devices in range(num_devices + 1):
            if used_copies[outer, devices] < fewest:
                fewest = used_copies[outer, devices]
                labels[num_labels] = devices
                num_labels += 1
        if num_labels == 0:
            continue
        left = num_devices - labels[0]
        for inner in range(outer):
            if (
                tables.work[inner] > (left - costs.degrees[0]) * slack
                or tables.work[outer] - tables.work[inner] > left * slack
                or not _holds(tables.words, outer, inner)
            ):
                continue
            pair = outer * (outer - 1) // 2 + inner
            for degree in range(len(costs.degrees)):
                stage = _stage(costs, tables, inner, outer, degree, left * slack)
                if stage.least_seconds == np.inf:
                    continue
                for index in range(len(costs.copies)):
                    in_flight[index] = -1
                for label in range(num_labels):
                    devices = labels[label]
                    behind = used_copies[outer, devices]
                    for index in range(len(costs.copies)):
                        copies = costs.copies[index]
                        now_devices, now_copies = devices + copies * costs.degrees[degree], behind + copies
                        if (
                            now_devices > num_devices
                            or now_copies > costs.microbatches
                            or tables.work[inner] > (num_devices - now_devices) * slack
                        ):
                            break
                        if stage.least_seconds + (copies - 1) * stage.least_sum > copies * slack:
                            continue
                        if in_flight[index] < 0:
                            least, most = 0, costs.microbatches
                            if is_kept:
                                least, most = room.least[pair, degree, index], room.most[pair, degree, index]
                            in_flight[index], given_up = _most_in_flight(
                                costs, tables, stage, inner, outer, degree, copies, limit_seconds, least, most
                            )
                            if is_kept:
                                room.now[pair, degree, index] = in_flight[index]
                            undecided += given_up
                        if -(-now_copies // copies) > in_flight[index]:
                            continue
                        if now_copies < used_copies[inner, now_devices]:
                            used_copies[inner, now_devices] = now_copies
                            steps[inner, now_devices, NEXT] = outer
                            steps[inner, now_devices, DEGREE] = degree
                            steps[inner, now_devices, COPIES] = copies
                        break
    return undecided


@compiled
def _stage(costs: Costs, tables: Tables, inner: int, outer: int, degree: int, limit_seconds: float) -> Stage:
    """Infinite seconds where a node cannot run at that degree, or the stage takes longer on all copies together."""
    none = Stage(np.inf, 0.0, np.inf, 0.0, 0.0, 0.0, 0.0, 0.0)
    if tables.absent[degree, outer] > tables.absent[degree, inner]:
        return none
    whole, part = tables.sums[degree, outer], tables.sums[degree, inner]
    if (whole[SECONDS] - part[SECONDS]) * costs.degrees[degree] > limit_seconds:
        return none
    edges, entering, crossing = _crossing(costs, tables, inner, outer)
    least = quickest = 0.0
    for index in range(crossing):
        edge = edges[index]
        extra = tables.entering if index < entering else tables.leaving
        least += 2 * (costs.edge_bytes[edge] + extra[0, degree, edge])
        quickest += 2 * (costs.edge_bytes[edge] + extra[1, degree, edge])
    per_parameter = 4 / (costs.microbatches * costs.bandwidth)
    return Stage(
        whole[SECONDS] - part[SECONDS] + least / costs.bandwidth,
        per_parameter * (whole[PARAMETERS] - part[PARAMETERS]),
        whole[QUICKEST + SECONDS] - part[QUICKEST + SECONDS] + quickest / costs.bandwidth,
        per_parameter * (whole[QUICKEST + PARAMETERS] - part[QUICKEST + PARAMETERS]),
        whole[PER_MICROBATCH] - part[PER_MICROBATCH],
        whole[ALWAYS] - part[ALWAYS],
        whole[QUICKEST + PER_MICROBATCH] - part[QUICKEST + PER_MICROBATCH],
        whole[QUICKEST + ALWAYS] - part[QUICKEST + ALWAYS],
    )


@compiled
def _most_in_flight(
    costs: Costs,
    tables: Tables,
    stage: Stage,
    inner: int,
    outer: int,
    degree: int,
    copies: int,
    limit_seconds: float,
    fits: int,
    most: int,
) -> tuple[int, int]:
    """How many microbatches the stage may keep, from `fits` to `most`; and how often that could not be decided."""
    most = min(most, _in_room(costs, stage.least_held, stage.least_always, 1 + ROUNDING))
    if fits < most and stage.quickest_seconds + (copies - 1) * stage.quickest_sum <= copies * limit_seconds * (
        1 - ROUNDING
    ):
        fits = max(fits, min(most, _in_room(costs, stage.quickest_held, stage.quickest_always, 1 - ROUNDING)))
    given_up = 0
    nodes = np.empty(costs.seconds.shape[1], dtype=np.int64)
    choice = np.empty(costs.seconds.shape[1], dtype=np.int64)
    while fits < most:
        middle = (fits + most + 1) // 2
        answer, _ = choose_in_stage(costs, tables, inner, outer, degree, copies, middle, limit_seconds, nodes, choice)
        if answer == FITS:
            fits = middle
        else:
            most = middle - 1
            given_up += answer == UNDECIDED
    return fits, given_up


@compiled
def _in_room(costs: Costs, held_bytes: float, always_bytes: float, share: float) -> int:
    """How many microbatches of so many bytes fit beside what is always there."""
    room = costs.memory_bytes * share - always_bytes
    if room < 0:
        return 0
    if held_bytes * costs.microbatches <= room:
        return costs.microbatches
    return int(room / held_bytes)
