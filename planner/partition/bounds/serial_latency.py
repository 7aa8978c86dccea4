"""A bound on a lone batch where each device runs one stage, which waits for all that it reads and sends at its end.

What lies between two nodes of a longest path that stand in one stage stands in that stage too, since edges go to higher
stages only, and adds all its work to the path. Where they stand apart, stages of their own between the two may run side
by side: the batch goes through any of these, the longest too, and is sent before it and behind it. Such stages serve no
other block, or they would wait for themselves; and what is before, between and behind blocks that are parted runs on
devices of its own.

Two bounds follow, and the better one counts. By number: of a block with m stages of its own, on devices as fast
together as s of the fastest, at most 1 - 1/s of the work is spared, and one device more than blocks are parted runs
what is outside them; either one of these is among the fastest, or all that is outside runs slower. By prices of
devices, so that each serves once: `priced_blocks`.
"""

from __future__ import annotations

import math

import numpy as np

from planner.partition.bounds.path_blocks import Blocks, PathBlocks
from planner.partition.bounds.priced_blocks import priced_bound
from planner.partition.bounds.sites import sites_of
from planner.partition.problem import Floats, Integers, PartitionProblem
from planner.partition.program_orders import Bundles

# What lies between path nodes further apart is not counted, in turn: it would keep apart too many others.
_SPANS = (4, 8, 16, 32, 64, 128, 512)
# So many stages side by side, or more, are taken to spare all of a block's work: each count is tried for each block.
_MANY = 16
_MARGIN = 1 - 1e-9


def serial_bound(problem: PartitionProblem, bundles: Bundles, num_stages: int = 0) -> float:
    """Not where a device may run several stages, or nodes again. O(reads + nodes). `num_stages` 0: any number."""
    path = PathBlocks(problem, bundles)
    several = path.within_each(_SPANS)
    most_stages = min(problem.num_devices, num_stages or problem.num_devices)
    slowness_of_device = _slowness(problem.compute_seconds)
    slowness = np.sort(slowness_of_device)
    bounds = [path.longest_seconds]
    for blocks in several:
        in_turn = path.longest_seconds + float(blocks.beside.sum())
        spared = in_turn - _spared(blocks, most_stages, slowness)
        bounds.append(min(spared, _slower(blocks, in_turn, most_stages, slowness)))
    sites = sites_of(problem, slowness_of_device, most_stages)
    return max(*bounds, priced_bound(several, path.longest_seconds, sites)) * _MARGIN


def _slowness(compute_seconds: Floats) -> Floats:
    """[devices]: how many times the least seconds of a node it takes at least, for each."""
    fastest = compute_seconds.min(axis=0)
    takes_time = (fastest > 0) & np.isfinite(fastest)
    least: Floats = (compute_seconds[:, takes_time] / fastest[takes_time]).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), least, 1.0)


def _spared(blocks: Blocks, most_stages: int, slowness: Floats) -> float:
    """Seconds that blocks with stages of their own take off the path at most, where a stage outside has one of the
    fastest devices: one stage for each behind it, and at least two side by side. O(stages^2) once the largest blocks
    are known."""
    spared = np.zeros(most_stages)
    counts = np.arange(2, min(most_stages - 1, _MANY + 1))
    shares = 1 - 1 / np.cumsum(1 / slowness[1:])[counts - 1]
    shares[counts == _MANY] = 1.0
    each = np.minimum(
        blocks.within[:, None] * shares - 2 * blocks.message[:, None],
        (blocks.beside - blocks.message)[:, None],
    )
    for own in each[_largest(each, _most_parted(most_stages))]:
        better = spared.copy()
        for count, seconds in zip(counts.tolist(), own.tolist(), strict=True):
            better[count + 1 :] = np.maximum(better[count + 1 :], spared[: -count - 1] + seconds)
        spared = better
    return float(spared.max())


def _slower(blocks: Blocks, in_turn: float, most_stages: int, slowness: Floats) -> float:
    """Seconds where no stage outside the parted blocks has one of the fastest devices."""
    slower = slowness[slowness > slowness[0] * (1 + 1e-9)]
    if not slower.size:
        return math.inf
    apart = np.sort(blocks.within)[::-1][: _most_parted(most_stages)]
    return float(slower[0] * (in_turn - apart.sum()))


def _most_parted(most_stages: int) -> int:
    """Of blocks: each takes two stages and one behind it, and there is one before all."""
    return (most_stages - 1) // 3


def _largest(each: Floats, most: int) -> Integers:
    """Rows that are among so many largest of some column; of those some choice of so many rows is the best."""
    if each.shape[0] <= most or not each.size:
        return np.arange(each.shape[0] if each.size else 0)
    return np.unique(np.argpartition(-each, most - 1, axis=0)[:most])
