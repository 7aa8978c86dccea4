"""A first placement for the search for a short longest path: clusters along long paths, on devices that hold them."""

from __future__ import annotations

from itertools import pairwise

from planner.fx_compat.byte_model.path_search import arrivals, longest_path
from planner.fx_compat.byte_model.transfer_problem import NOWHERE, Occupancy, TransferProblem


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
