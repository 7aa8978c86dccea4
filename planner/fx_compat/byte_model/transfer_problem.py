"""Operations on devices, for the least longest path: what a placement's latency and memory follow from.

Where every operation is a group of its own, no grouping on the same devices is quicker: groups on one device cost no
transfers. So the search places operations, and groups them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.fx_compat.byte_model.critical_path import transfer_seconds
from planner.fx_compat.byte_model.operation_graph import OperationGraph

NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransferProblem:
    """By position among the operations. `sources`: (operation read, seconds if it is on another device).

    `givens` are node indexes; `given_bytes` by node index.
    """

    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    sources: tuple[tuple[tuple[int, float], ...], ...]
    users: tuple[tuple[int, ...], ...]
    total_bytes: tuple[int, ...]
    out_bytes: tuple[int, ...]
    givens: tuple[tuple[int, ...], ...]
    given_bytes: tuple[int, ...]
    capacities: tuple[int, ...]

    @property
    def num_operations(self) -> int:
        return len(self.nodes)


def transfer_problem(
    graph: OperationGraph, seconds: Sequence[float], bytes_per_second: float, capacities: Sequence[int]
) -> TransferProblem:
    """`seconds` by node."""
    nodes = graph.operations
    position = {node: index for index, node in enumerate(nodes)}
    givens = tuple(tuple(source for source in graph.inputs[node] if not graph.is_operation[source]) for node in nodes)

    def between(source: int, reader: int) -> float:
        shared = set(givens[reader]).intersection(givens[source]) if givens[reader] else ()
        size = graph.out_bytes[nodes[source]] + sum(graph.out_bytes[given] for given in shared)
        return transfer_seconds(size, bytes_per_second)

    read = [[position[source] for source in graph.inputs[node] if graph.is_operation[source]] for node in nodes]
    return TransferProblem(
        nodes=nodes,
        seconds=tuple(seconds[node] for node in nodes),
        sources=tuple(
            tuple((source, between(source, reader)) for source in read_here) for reader, read_here in enumerate(read)
        ),
        users=tuple(tuple(position[user] for user in graph.users[node] if user in position) for node in nodes),
        total_bytes=tuple(graph.total_bytes[node] for node in nodes),
        out_bytes=tuple(graph.out_bytes[node] for node in nodes),
        givens=givens,
        given_bytes=graph.out_bytes,
        capacities=tuple(capacities),
    )


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
