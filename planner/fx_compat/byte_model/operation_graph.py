"""A program as torch.fx's accelerator partitioner counts it: its nodes in program order, with the bytes of each.

A group is a set of node indexes: operations, and the givens (placeholders, attributes) that they read directly. A given
is held wherever it is read; an operation's output that comes from outside is charged once per reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field

Group = Set[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationGraph:
    """`total_bytes` is a node's output and, for a module, its parameters. `inputs` are distinct and of earlier nodes.

    `after`: (earlier, later) operations whose effects have to keep their order although no value joins them.
    """

    out_bytes: tuple[int, ...]
    total_bytes: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    is_operation: tuple[bool, ...]
    after: tuple[tuple[int, int], ...] = ()
    users: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        users: list[list[int]] = [[] for _ in self.inputs]
        for node, read in enumerate(self.inputs):
            for source in read:
                users[source].append(node)
        object.__setattr__(self, "users", tuple(tuple(readers) for readers in users))

    @property
    def operations(self) -> tuple[int, ...]:
        return tuple(node for node, operation in enumerate(self.is_operation) if operation)

    def extra_bytes(self, node: int, group: Collection[int]) -> int:
        """What `node` needs in or beside `group`: itself, and each input from outside of it."""
        outside = sum(self.out_bytes[source] for source in self.inputs[node] if source not in group)
        return self.total_bytes[node] + outside

    def group_bytes(self, group: Group) -> int:
        return sum(self.extra_bytes(node, group) for node in group)

    def with_givens(self, operations: Iterable[int]) -> set[int]:
        """The operations, and the givens that they read directly."""
        group = set(operations)
        for node in tuple(group):
            group.update(source for source in self.inputs[node] if not self.is_operation[source])
        return group

    def least_bytes(self) -> int:
        """No placement takes less over all devices: every operation once, and every given that one reads."""
        return sum(self.total_bytes[node] for node in self.with_givens(self.operations))
