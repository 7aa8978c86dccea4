"""Lists of partitions, changed in place, by torch.fx's names: joined, numbered anew, and who depends on whom."""

from __future__ import annotations

from torch.fx import Node

from planner.fx_compat.partitioning.record import Partition


def reset_partition_device(partitions: list[Partition]) -> None:
    for partition in partitions:
        partition.logical_device_ids = []


def combine_two_partitions(partition_0: Partition, partition_1: Partition, partitions: list[Partition]) -> None:
    """Both leave the list, and what they hold together comes last."""
    joined = Partition(len(partitions), {**partition_0.sizes, **partition_1.sizes})
    joined.nodes = partition_0.nodes | partition_1.nodes
    joined.recalculate_mem_size()
    partitions.append(joined)
    partitions.remove(partition_0)
    partitions.remove(partition_1)
    reorganize_partitions(partitions)


def reorganize_partitions(partitions: list[Partition]) -> None:
    """Ids by position, and parents and children."""
    for position, partition in enumerate(partitions):
        partition.partition_id = position
    set_parents_and_children(partitions)


def set_parents_and_children(partitions: list[Partition]) -> None:
    """A child reads a node of its parent that it does not hold itself. Linear in uses."""
    holders: dict[Node, list[Partition]] = {}
    for partition in partitions:
        partition.children, partition.parents = set(), set()
        for node in partition.nodes:
            holders.setdefault(node, []).append(partition)
    for node, parents in holders.items():
        for user in node.users:
            for child in holders.get(user, ()):
                if node in child.nodes:
                    continue
                for parent in parents:
                    parent.children.add(child)
                    child.parents.add(parent)


def get_bfs_level_partition(partitions: list[Partition]) -> None:
    """Sets `bfs_level`, the longest path of partitions to each. Partitions in or behind a cycle keep theirs."""
    waiting = {partition: len(partition.parents) for partition in partitions}
    ready = [partition for partition in partitions if not partition.parents]
    for partition in ready:
        partition.bfs_level = 0
    for partition in ready:
        for child in partition.children:
            reached = partition.bfs_level + 1
            fresh = waiting[child] == len(child.parents)
            child.bfs_level = reached if fresh else max(child.bfs_level, reached)
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)


def get_node_to_partition_mapping(partitions: list[Partition]) -> dict[Node, int]:
    return {node: partition.partition_id for partition in partitions for node in partition.nodes}


def check_dependency(partition: Partition) -> bool:
    """Whether the partition depends on itself."""
    seen, waiting = set[Partition](), [partition]
    while waiting:
        for child in waiting.pop().children:
            if child is partition:
                return True
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    return False
