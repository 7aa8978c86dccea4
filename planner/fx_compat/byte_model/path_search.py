"""Local search for the least longest path: operations at the ends of transfers on it change devices.

It begins again from its best placements, a few operations moved at random by a fixed generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random

from planner.fx_compat.byte_model.transfer_problem import Occupancy, TransferProblem

# Rounding in sums of seconds is no improvement.
LEAST_GAIN = 1e-12
_SEED = 20201
_TRIES = 20

Move = tuple[tuple[int, int], ...]


class Steps:
    """How many operations a search may still visit: what it spends instead of time, so that it is the same anywhere."""

    def __init__(self, count: int) -> None:
        self.left = count

    def spend(self, count: int) -> bool:
        self.left -= count
        return self.left > 0


def arrivals(problem: TransferProblem, device: Sequence[int]) -> list[float]:
    """By operation: when it is done, on the longest path to it."""
    done: list[float] = []
    add = done.append
    for here, own, sources in zip(device, problem.seconds, problem.sources, strict=True):
        ready = 0.0
        for source, apart in sources:
            at = done[source]
            if device[source] != here:
                at += apart
            if at > ready:
                ready = at
        add(ready + own)
    return done


def least_latency(problem: TransferProblem) -> float:
    """Of any placement: the longest path with nothing to transfer."""
    return max(arrivals(problem, [0] * problem.num_operations), default=0.0)


def longest_path(problem: TransferProblem, device: Sequence[int], done: Sequence[float]) -> list[int]:
    """From its first operation on."""
    here = done.index(max(done))
    path = [here]
    while problem.sources[here]:
        start = done[here] - problem.seconds[here]
        late = [
            (done[source] + (apart if device[source] != device[here] else 0.0), source)
            for source, apart in problem.sources[here]
        ]
        arrival, here = max(late)
        if arrival <= 0.0 and start <= 0.0:
            break
        path.append(here)
    return path[::-1]


def improve(problem: TransferProblem, occupancy: Occupancy, steps: Steps, goal: float) -> float:
    """Applies the best move until none shortens the longest path, or paths in sum at no greater length."""
    done = arrivals(problem, occupancy.device)
    best = (max(done), sum(done))
    while best[0] > goal * (1 + LEAST_GAIN):
        best_move: Move | None = None
        for move in _moves(problem, occupancy.device, longest_path(problem, occupancy.device, done)):
            back = apply(occupancy, move)
            if occupancy.fitting():
                if not steps.spend(problem.num_operations):
                    apply(occupancy, back)
                    return best[0]
                ends = arrivals(problem, occupancy.device)
                value = (max(ends), sum(ends))
                if _is_less(value, best):
                    best, best_move = value, move
            elif not steps.spend(problem.num_operations // 4):
                apply(occupancy, back)
                return best[0]
            apply(occupancy, back)
        if best_move is None:
            return best[0]
        apply(occupancy, best_move)
        done = arrivals(problem, occupancy.device)
    return best[0]


def _is_less(value: tuple[float, float], best: tuple[float, float]) -> bool:
    margin = LEAST_GAIN * best[0]
    if value[0] < best[0] - margin:
        return True
    return value[0] <= best[0] + margin and value[1] < best[1] - LEAST_GAIN * best[1]


def apply(occupancy: Occupancy, move: Move) -> Move:
    """Returns the move that undoes it."""
    back = tuple((operation, occupancy.take(operation)) for operation, _ in move)
    for operation, target in move:
        occupancy.put(operation, target)
    return back


def _moves(problem: TransferProblem, device: Sequence[int], path: list[int]) -> Iterator[Move]:
    """Either end of each transfer to the other's device, and whole stretches of one device to any."""
    runs = _runs(path, device)
    for before, after in pairwise(runs):
        yield ((before[-1], device[after[0]]),)
        yield ((after[0], device[before[-1]]),)
    for run in runs if len(runs) > 2 else ():
        for target in range(len(problem.capacities)):
            if target != device[run[0]] and len(run) > 1:
                yield tuple((operation, target) for operation in run)


def _runs(path: list[int], device: Sequence[int]) -> list[list[int]]:
    """The path cut where it changes devices."""
    runs = [[path[0]]]
    for operation in path[1:]:
        if device[operation] == device[runs[-1][-1]]:
            runs[-1].append(operation)
        else:
            runs.append([operation])
    return runs


def iterate(
    problem: TransferProblem, placements: Sequence[tuple[float, list[int]]], steps: Steps, goal: float
) -> tuple[float, list[int]]:
    """The best that is found until the steps are spent. The same on any machine."""
    best = placements[0]
    random, turn = Random(_SEED), 0
    while steps.left > 0 and best[0] > goal * (1 + LEAST_GAIN):
        _, device = best if turn % 2 == 0 else placements[turn // 2 % len(placements)]
        turn += 1
        steps.spend(problem.num_operations)
        occupancy = Occupancy(problem, device)
        if not _disturb(problem, occupancy, random):
            continue
        value = improve(problem, occupancy, steps, goal)
        if value < best[0]:
            best = (value, list(occupancy.device))
    return best


def _disturb(problem: TransferProblem, occupancy: Occupancy, random: Random) -> bool:
    """Moves or trades a few operations, as far as memory allows."""
    n, devices = problem.num_operations, len(problem.capacities)
    goal, num_moved = 1 + random.randrange(4), 0
    for _ in range(_TRIES):
        one, other = random.randrange(n), random.randrange(n)
        home, there = occupancy.device[one], occupancy.device[other]
        if home != there and random.random() < 0.5:
            move = ((one, there), (other, home))
        else:
            move = ((one, random.randrange(devices)),)  # type: ignore[assignment]
        back = apply(occupancy, move)
        if occupancy.fitting():
            num_moved += 1
        else:
            apply(occupancy, back)
        if num_moved == goal:
            return True
    return num_moved > 0
