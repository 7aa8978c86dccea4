"""Operations on devices joined into groups while no path gets too long: passes in program order.

A group begins when all that it reads has arrived and hands on when all of it is done, so whoever joins one may delay
the others. An operation joins a group of its device that no other has read yet, if what waits for the group still meets
the limit; readers that can join too are counted as if they will. A group that another has read is closed: so there are
no cycles, and ends stay where they were counted. Greedy, not the fewest groups.

Where an operation comes too late all the same, the pass begins again and knows why: it did not join the group that it
reads, so that group may take in nobody who delays it; or it reads several tensors of one group, which travel one after
another, where groups of their own send them at the same time; or else what it reads had better be alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations

from planner.fx_compat.byte_model.critical_path import transfer_seconds
from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.operation_graph import OperationGraph
from planner.fx_compat.byte_model.transfer_problem import TransferProblem

# The programs of benchmarks.compare_torch_partitioner need up to four.
_PASSES = 16


def groups_by_slack(
    graph: OperationGraph, problem: TransferProblem, bytes_per_second: float, device: Sequence[int], limit: float
) -> PlacedGroups | None:
    """`device` by operation of `problem`. No path is longer than `limit`; None where the passes do not suffice."""
    search = _Search(graph, problem, bytes_per_second, device, limit)
    for _ in range(_PASSES):
        groups = search.one_pass()
        if groups is not None:
            return PlacedGroups(
                groups=tuple(
                    frozenset((*(problem.nodes[one] for one in group.done), *group.givens)) for group in groups
                ),
                devices=tuple((group.device,) for group in groups),
            )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """`done`: by member, seconds from the group's start; `reads`: by index of another group, the nodes of it that this
    one reads; `through`: the longest path from the group's start to the end of the program; `behind`: by operation that
    waits for the whole group, the longest path from the group's end.
    """

    device: int
    givens: Set[int] = frozenset()
    done: Mapping[int, float] = field(default_factory=dict)
    reads: Mapping[int, Set[int]] = field(default_factory=dict)
    ready: float = 0.0
    length: float = 0.0
    through: float = 0.0
    behind: Mapping[int, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.ready + self.length

    @property
    def longest_path(self) -> float:
        return self.ready + max(self.through, self.length + max(self.behind.values(), default=0.0))


class _Search:
    """What is learnt from operations that came too late. `_apart`: operations that wait for the groups they read as
    wholes. `_divided`: by operation, those that it must not be in one group with. `_alone`: groups of their own.
    """

    def __init__(
        self,
        graph: OperationGraph,
        problem: TransferProblem,
        bytes_per_second: float,
        device: Sequence[int],
        limit: float,
    ) -> None:
        self._graph, self._problem, self._bytes_per_second = graph, problem, bytes_per_second
        self._device, self._limit = device, limit
        self._apart: set[int] = set()
        self._divided: dict[int, set[int]] = {}
        self._alone: set[int] = set()
        self._before: dict[int, list[int]] = {}
        number = {node: operation for operation, node in enumerate(problem.nodes)}
        for earlier, later in graph.after:
            self._before.setdefault(number[later], []).append(number[earlier])
        # The longest path of single operations after each, and the same by each of its readers.
        self._rest = [0.0] * problem.num_operations
        self._rest_by: list[dict[int, float]] = [{} for _ in device]
        for reader in reversed(range(problem.num_operations)):
            for source, transfer in problem.sources[reader]:
                if device[source] != device[reader]:
                    self._apart.add(reader)
                    behind = self._rest[reader] + problem.seconds[reader] + transfer
                else:
                    behind = self._rest[reader] + problem.seconds[reader]
                self._rest_by[source][reader] = behind
                self._rest[source] = max(self._rest[source], behind)

    def one_pass(self) -> Sequence[_Group] | None:
        """None if an operation came too late, with what follows from it noted."""
        groups: list[_Group] = []
        group_of: list[int] = []
        closed: set[int] = set()
        for operation, here in enumerate(self._device):
            divided: Set[int] = self._divided.get(operation, frozenset())
            for index in reversed(range(0 if operation in self._alone else len(groups))):
                if index in closed or groups[index].device != here or divided & groups[index].done.keys():
                    continue
                joined = self._joined(groups, index, operation, group_of)
                if joined.longest_path <= self._limit:
                    groups[index] = joined
                    break
            else:
                index = len(groups)
                groups.append(_Group(device=here))
                groups[index] = self._joined(groups, index, operation, group_of)
                if groups[index].longest_path > self._limit:
                    self._learn(operation, group_of)
                    return None
            group_of.append(index)
            closed.update((*groups[index].reads, *((index,) if operation in self._alone else ())))
        return groups

    def _joined(self, groups: Sequence[_Group], index: int, operation: int, group_of: Sequence[int]) -> _Group:
        """The group at `index` with one operation more."""
        group, problem, node_of = groups[index], self._problem, self._problem.nodes
        own = [source for source, _ in problem.sources[operation]]
        givens = group.givens | set(problem.givens[operation])
        reads: dict[int, Set[int]] = {}
        ready = 0.0
        for other in {*group.reads, *(group_of[one] for one in (*own, *self._before.get(operation, ())))} - {index}:
            from_other = (node_of[source] for source in own if group_of[source] == other)
            # A given that both hold counts as carried from one to the other: torch.fx's latency has it so.
            read = reads[other] = {*group.reads.get(other, ()), *from_other, *(groups[other].givens & givens)}
            arrival = groups[other].end
            if groups[other].device != group.device:
                read_bytes = sum(self._graph.out_bytes[node] for node in read)
                arrival += transfer_seconds(read_bytes, self._bytes_per_second)
            ready = max(ready, arrival)
        done = max((group.done.get(source, 0.0) for source in own), default=0.0) + problem.seconds[operation]
        behind = {reader: rest for reader, rest in self._rest_by[operation].items() if reader in self._apart}
        return _Group(
            device=group.device,
            givens=givens,
            done={**group.done, operation: done},
            reads=reads,
            ready=ready,
            length=max(group.length, done),
            through=max(group.through, done + self._rest[operation]),
            behind={reader: rest for reader, rest in {**group.behind, **behind}.items() if reader != operation},
        )

    def _learn(self, operation: int, group_of: Sequence[int]) -> None:
        """Why a group that begins with the operation is too late: the first of three reasons that is new."""
        if operation not in self._apart:
            self._apart.add(operation)
            return
        sources = sorted(source for source, _ in self._problem.sources[operation])
        pairs = [(one, other) for one, other in combinations(sources, 2) if group_of[one] == group_of[other]]
        if any(one not in self._divided.get(other, ()) for one, other in pairs):
            for one, other in pairs:
                self._divided.setdefault(other, set()).add(one)
            return
        self._alone.update(sources)
