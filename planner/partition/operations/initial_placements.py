"""First placements for the search for a short longest path: segments of the program, and clusters along long paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from planner.partition.operations.path_search import arrivals, longest_path
from planner.partition.operations.transfer_problem import NOWHERE, Occupancy, TransferProblem

_CUTS = 48


def segment_starts(problem: TransferProblem) -> Iterator[list[int]]:
    """The segments of least transfers, in sum over the cuts, for devices in list order and from the largest."""
    listed = list(range(len(problem.capacities)))
    orders = [sorted(listed, key=lambda device: (-problem.capacities[device], device)), listed, listed[::-1]]
    seen: set[tuple[int, ...]] = set()
    cost = _cut_seconds(problem)
    for order in orders:
        rooms = tuple(problem.capacities[device] for device in order)
        if rooms in seen:
            continue
        seen.add(rooms)
        bounds = _least_cuts(problem, rooms, cost)
        if bounds:
            yield [order[segment] for segment, (start, end) in enumerate(pairwise(bounds)) for _ in range(start, end)]


def _cut_seconds(problem: TransferProblem) -> list[float]:
    """By position: the slowest transfer that a cut there makes."""
    cost = [0.0] * (problem.num_operations + 1)
    last: list[tuple[float, int]] = []
    ending: list[dict[int, float]] = [{} for _ in range(problem.num_operations + 1)]
    for reader, sources in enumerate(problem.sources):
        for source, apart in sources:
            ending[source + 1][reader] = max(apart, ending[source + 1].get(reader, 0.0))
    for position in range(1, problem.num_operations):
        last.extend((apart, reader) for reader, apart in ending[position].items())
        last = [(apart, reader) for apart, reader in last if reader >= position]
        cost[position] = max((apart for apart, _ in last), default=0.0)
    return cost


def _least_cuts(problem: TransferProblem, rooms: Sequence[int], cost: list[float]) -> list[int]:
    """Bounds of at most as many segments as rooms, each within its own; empty if there are none."""
    positions = _positions(problem, cost)
    last = len(positions) - 1
    least: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    grown: dict[int, list[int]] = {}
    largest = max(rooms)
    for room in rooms:
        reached: dict[int, tuple[float, int]] = {}
        for start, (cost_so_far, _) in least[-1].items():
            if start not in grown:
                grown[start] = _segment_bytes(problem, positions, start, largest)
            for end, needed in enumerate(grown[start], start + 1):
                if needed > room:
                    break
                value = cost_so_far + cost[positions[end]]
                if end not in reached or value < reached[end][0]:
                    reached[end] = (value, start)
        least.append(reached)
        reached.setdefault(0, (0.0, 0))
    ends = [(reached[last][0], count) for count, reached in enumerate(least) if last in reached]
    if not ends:
        return []
    _, count = min(ends)
    bounds, at = [last], last
    for reached in least[count:0:-1]:
        at = reached[at][1]
        bounds.append(at)
    return [positions[at] for at in reversed(bounds)]


def _segment_bytes(problem: TransferProblem, positions: Sequence[int], start: int, largest: int) -> list[int]:
    """Of the segments from one position to each later one, up to the first that exceeds the largest room."""
    used, first, leaves = 0, positions[start], set[int]()
    sizes = []
    for low, high in zip(positions[start:], positions[start + 1 :], strict=False):
        for operation in range(low, high):
            used += problem.total_bytes[operation]
            used += sum(problem.out_bytes[source] for source, _ in problem.sources[operation] if source < first)
            for given in problem.givens[operation]:
                if given not in leaves:
                    leaves.add(given)
                    used += problem.given_bytes[given]
        sizes.append(used)
        if used > largest:
            break
    return sizes


def _positions(problem: TransferProblem, cost: list[float]) -> list[int]:
    """All of a short program; of a long one those with the least to transfer, in slices of equal bytes."""
    n = problem.num_operations
    if n <= _CUTS:
        return list(range(n + 1))
    total, before = sum(problem.total_bytes) or 1, 0
    best: dict[int, tuple[float, int]] = {}
    for position in range(1, n):
        before += problem.total_bytes[position - 1]
        part = (before * _CUTS // total, position * _CUTS // n)
        for key in (part[0], ~part[1]):
            if key not in best or cost[position] < best[key][0]:
                best[key] = (cost[position], position)
    return sorted({0, n, *(position for _, position in best.values())})


def cluster_start(problem: TransferProblem) -> list[int] | None:
    """Joins what transfers most along the longest path, while one device can hold it; then packs. None if that fails.

    As Sarkar's edge zeroing (1989), along the longest path of the time. O(rounds x edges).
    """
    clusters = _Clusters(problem)
    joined = True
    while joined:
        joined = False
        done = arrivals(problem, clusters.of)
        path = longest_path(problem, clusters.of, done)
        edges = [(one, other) for one, other in pairwise(path) if clusters.apart(one, other)]
        edges.sort(key=lambda edge: -dict(problem.sources[edge[1]])[edge[0]])
        for one, other in edges:
            joined = clusters.join(one, other) or joined
    return clusters.packed()


class _Clusters:
    def __init__(self, problem: TransferProblem) -> None:
        self._problem = problem
        self.of = list(range(problem.num_operations))
        self._members = {operation: [operation] for operation in self.of}
        self._room = max(problem.capacities)
        self._sizes = {operation: self._bytes([operation]) for operation in self.of}
        self._refused: set[tuple[int, int]] = set()

    def apart(self, one: int, other: int) -> bool:
        return self.of[one] != self.of[other]

    def join(self, one: int, other: int) -> bool:
        ends = self.of[one], self.of[other]
        if ends[0] == ends[1] or ends in self._refused:
            return False
        small, large = sorted(ends, key=lambda cluster: (len(self._members[cluster]), cluster))
        size = self._bytes([*self._members[large], *self._members[small]])
        if size > self._room:
            self._refused.add(ends)
            return False
        for operation in self._members[small]:
            self.of[operation] = large
        self._members[large] += self._members.pop(small)
        self._sizes[large] = size
        return True

    def _bytes(self, members: list[int]) -> int:
        problem, inside = self._problem, set(members)
        givens = {given for operation in members for given in problem.givens[operation]}
        size = sum(problem.given_bytes[given] for given in givens)
        for operation in members:
            size += problem.total_bytes[operation]
            size += sum(problem.out_bytes[source] for source, _ in problem.sources[operation] if source not in inside)
        return size

    def packed(self) -> list[int] | None:
        """Largest cluster first, to the fullest device that holds it; single operations where none does."""
        occupancy = Occupancy(self._problem)
        order = sorted(self._members, key=lambda cluster: (-self._sizes[cluster], cluster))
        for cluster in order:
            members = sorted(self._members[cluster])
            if not _place_whole(occupancy, members):
                for operation in members:
                    if not _place_whole(occupancy, [operation]):
                        return None
        return occupancy.device if occupancy.fitting() else None


def _place_whole(occupancy: Occupancy, members: list[int]) -> bool:
    capacities = occupancy.problem.capacities
    order = sorted(range(len(capacities)), key=lambda device: (capacities[device] - occupancy.used[device], device))
    for device in order:
        for operation in members:
            occupancy.put(operation, device)
        if occupancy.fitting():
            return True
        for operation in reversed(members):
            occupancy.take(operation)
    assert all(occupancy.device[operation] == NOWHERE for operation in members)
    return False
