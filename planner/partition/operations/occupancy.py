"""What each device holds while operations move between them, kept up to date in a step's neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from planner.partition.operations.transfer_problem import TransferProblem

NOWHERE = -1


class Occupancy:
    """`device[operation]`, NOWHERE if it has none; `used[device]`: bytes of all that is there as one group."""

    def __init__(self, problem: TransferProblem, device: Sequence[int] | None = None) -> None:
        self.problem = problem
        self.device = [NOWHERE] * problem.num_operations
        self.used = [0] * len(problem.capacities)
        self._readers: list[dict[int, int]] = [{} for _ in problem.capacities]
        for operation, target in enumerate(device or ()):
            self.put(operation, target)

    def added_bytes(self, operation: int, target: int) -> int:
        """What `target` takes more with an operation that is not there. Negative where it brings what others read."""
        problem, device, readers = self.problem, self.device, self._readers[target]
        added = problem.total_bytes[operation]
        for source, _ in problem.sources[operation]:
            if device[source] != target:
                added += problem.out_bytes[source]
        for given in problem.givens[operation]:
            if not readers.get(given):
                added += problem.given_bytes[given]
        size = problem.out_bytes[operation]
        if size:
            for user in problem.users[operation]:
                if device[user] == target:
                    added -= size
        return added

    def fits(self, operation: int, target: int) -> bool:
        return self.used[target] + self.added_bytes(operation, target) <= self.problem.capacities[target]

    def put(self, operation: int, target: int) -> None:
        self.used[target] += self.added_bytes(operation, target)
        self.device[operation] = target
        readers = self._readers[target]
        for given in self.problem.givens[operation]:
            readers[given] = readers.get(given, 0) + 1

    def take(self, operation: int) -> int:
        """The device that it was on. Bytes there may grow: what stays may have to receive what it read."""
        target = self.device[operation]
        readers = self._readers[target]
        for given in self.problem.givens[operation]:
            readers[given] -= 1
        self.device[operation] = NOWHERE
        self.used[target] -= self.added_bytes(operation, target)
        return target

    def fitting(self) -> bool:
        return all(used <= room for used, room in zip(self.used, self.problem.capacities, strict=True))
