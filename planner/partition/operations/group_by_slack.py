"""From operations on devices to few groups that keep the latency: an operation joins the group of one that it reads
as long as that delays nothing beyond its slack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.partition.operations.transfer_problem import TransferProblem


@dataclass(slots=True, kw_only=True)
class _Group:
    """It starts when all that enters has arrived; `inside` is its longest path; what reads from it needs it by `due`.

    `before`: a bit for each group that it waits for. `received`: operations of other groups that it reads, by group.
    """

    device: int
    start: float = 0.0
    inside: float = 0.0
    due: float = float("inf")
    before: int = 0
    has_readers: bool = False
    members: list[int] = field(default_factory=list)
    givens: set[int] = field(default_factory=set)
    received: dict[int, set[int]] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.start + self.inside


def group_by_slack(
    problem: TransferProblem, device: Sequence[int], latency: float, after: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Operations of each group, ascending. `after`: by operation, earlier ones whose effects have to come first.

    Linear in edges, but for sets of groups as bits. Mostly keeps to the latency: an operation that was expected to join
    a group, and then cannot, may exceed it.
    """
    grouping = _Grouping(problem, device, latency, after)
    for operation in range(problem.num_operations):
        grouping.add(operation)
    return [group.members for group in grouping.groups]


class _Grouping:
    def __init__(
        self, problem: TransferProblem, device: Sequence[int], latency: float, after: Sequence[Sequence[int]]
    ) -> None:
        self._problem, self._device, self._after = problem, device, after
        self._latest = _latest_ends(problem, device, latency)
        self._depth = [0.0] * problem.num_operations
        self._group_of = [-1] * problem.num_operations
        self.groups: list[_Group] = []

    def add(self, operation: int) -> None:
        """To the latest group on its device that it reads from and that has the slack; else to one of its own."""
        device = self._device[operation]
        read = [*(source for source, _ in self._problem.sources[operation]), *self._after[operation]]
        near = {self._group_of[source] for source in read if self._device[source] == device}
        for group in sorted(near, reverse=True):
            if self._fits(operation, group, read):
                break
        else:
            self.groups.append(_Group(device=device))
            group = len(self.groups) - 1
        self._enter(operation, group, read)

    def _fits(self, operation: int, index: int, read: Sequence[int]) -> bool:
        group = self.groups[index]
        before = self._waits_for(index, read)
        if before >> index & 1:
            return False
        start, inside = self._start(operation, index, read), max(group.inside, self._deep(operation, index))
        if start + inside > min(group.due, self._due(operation, index)) * (1 + 1e-12):
            return False
        # What others wait for already can neither wait for more, nor end later, nor share more inputs with them.
        frozen = before & ~group.before or start + inside > group.end
        return not (group.has_readers and (frozen or set(self._problem.givens[operation]) - group.givens))

    def _waits_for(self, index: int, read: Sequence[int]) -> int:
        others = {self._group_of[source] for source in read} - {index}
        before = 0
        for other in others:
            before |= self.groups[other].before | 1 << other
        return before

    def _start(self, operation: int, index: int, read: Sequence[int]) -> float:
        """When all has arrived that the group would read with the operation in it."""
        group, problem = self.groups[index], self._problem
        fresh: dict[int, set[int]] = {}
        for source in read:
            if self._group_of[source] != index:
                fresh.setdefault(self._group_of[source], set()).add(source)
        givens = set(problem.givens[operation])
        for other in group.received if givens - group.givens else ():
            fresh.setdefault(other, set())
        start = group.start
        for other, sources in fresh.items():
            parent = self.groups[other]
            arrival = parent.end
            if parent.device != group.device:
                together = sources | group.received.get(other, set())
                shared = parent.givens & (group.givens | givens)
                size = sum(problem.out_bytes[source] for source in together)
                size += sum(problem.given_bytes[given] for given in shared)
                arrival += size * problem.seconds_per_byte
            start = max(start, arrival)
        return start

    def _deep(self, operation: int, index: int) -> float:
        inside = (
            self._depth[source] for source, _ in self._problem.sources[operation] if self._group_of[source] == index
        )
        return self._problem.seconds[operation] + max(inside, default=0.0)

    def _due(self, operation: int, index: int) -> float:
        """When what reads it from outside of the group needs it; a reader that could join at once is not outside."""
        problem, device = self._problem, self._device
        due = self._latest[operation] if not problem.users[operation] else float("inf")
        for user in problem.users[operation]:
            start = self._latest[user] - problem.seconds[user]
            if device[user] != device[operation]:
                due = min(due, start - dict(problem.sources[user])[operation])
            elif any(source != operation and self._group_of[source] != index for source, _ in problem.sources[user]):
                due = min(due, start)
        return due

    def _enter(self, operation: int, index: int, read: Sequence[int]) -> None:
        group = self.groups[index]
        self._depth[operation] = self._deep(operation, index)
        group.start = self._start(operation, index, read)
        group.inside = max(group.inside, self._depth[operation])
        group.due = min(group.due, self._due(operation, index))
        group.before |= self._waits_for(index, read)
        for source in read:
            if self._group_of[source] != index:
                group.received.setdefault(self._group_of[source], set()).add(source)
                self.groups[self._group_of[source]].has_readers = True
        group.givens.update(self._problem.givens[operation])
        group.members.append(operation)
        self._group_of[operation] = index


def _latest_ends(problem: TransferProblem, device: Sequence[int], latency: float) -> list[float]:
    """By operation: when it has to be done."""
    latest = [latency] * problem.num_operations
    for operation in range(problem.num_operations - 1, -1, -1):
        start = latest[operation] - problem.seconds[operation]
        for source, apart in problem.sources[operation]:
            due = start - (apart if device[source] != device[operation] else 0.0)
            latest[source] = min(latest[source], due)
    return latest
