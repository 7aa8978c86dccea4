"""Embeddings spread over devices with all the rest beside each, as torch.fx's sparse mode has it, for unequal devices.

On equal devices the groups are torch.fx's. Where those do not fit, or devices are unequal, the rest is one or a few
groups that every used device holds, and embeddings fill what each device has left beside them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from planner.fx_compat.byte_model.first_fit import PlacedGroups
from planner.fx_compat.byte_model.grouping import children_of_groups, levels
from planner.fx_compat.byte_model.operation_graph import OperationGraph


def sparse_groups(graph: OperationGraph, embeddings: Set[int], capacities: Sequence[int]) -> PlacedGroups | None:
    """Embedding group i on the i-th device that is used, the rest on all of them. None if that does not fit.

    `embeddings`: node indexes, at least one.
    """
    if len(set(capacities)) == 1:
        placed = _on_equal_devices(graph, embeddings, capacities)
        if placed is not None:
            return placed
    return _beside_the_rest(graph, embeddings, capacities)


def _on_equal_devices(graph: OperationGraph, embeddings: Set[int], capacities: Sequence[int]) -> PlacedGroups | None:
    room = capacities[0]
    groups = _in_program_order(graph, embeddings, room)
    if groups is None:
        return None
    for kind in (False, True):
        while _join_smallest(graph, groups, embeddings, kind, room):
            pass
    sizes = [graph.group_bytes(group) for group in groups]
    sparse = [bool(group & embeddings) for group in groups]
    rest = sum(size for size, embedding in zip(sizes, sparse, strict=True) if not embedding)
    used = tuple(range(sum(sparse)))
    if len(used) > len(capacities):
        return None
    if any(embedding and rest + size > room for size, embedding in zip(sizes, sparse, strict=True)):
        return None
    own = iter(used)
    return PlacedGroups(
        groups=tuple(map(frozenset, groups)),
        devices=tuple((next(own),) if embedding else used for embedding in sparse),
    )


def _in_program_order(graph: OperationGraph, embeddings: Set[int], room: int) -> list[set[int]] | None:
    """A group ends where embeddings begin or end, and where it is full. None if an operation exceeds a device."""
    groups: list[set[int]] = []
    used, kind = 0, False
    for node in graph.operations:
        needed = graph.extra_bytes(node, groups[-1] if groups else ())
        if not groups or (node in embeddings) != kind or used + needed > room:
            needed, used, kind = graph.extra_bytes(node, ()), 0, node in embeddings
            if needed > room:
                return None
            groups.append(set())
        groups[-1] |= graph.with_givens((node,))
        used += needed
    return groups


def _join_smallest(graph: OperationGraph, groups: list[set[int]], embeddings: Set[int], kind: bool, room: int) -> bool:
    """The smallest of one kind with the largest that fits beside it, at most one level away."""
    level = levels(children_of_groups(graph, groups))
    sizes = {index: graph.group_bytes(group) for index, group in enumerate(groups) if bool(group & embeddings) == kind}
    by_size = sorted(sizes, key=lambda index: sizes[index])
    for other in by_size[:0:-1]:
        smallest = by_size[0]
        together = groups[other] | groups[smallest]
        if abs(level[smallest] - level[other]) <= 1 and graph.group_bytes(together) <= room:
            for index in sorted((smallest, other), reverse=True):
                groups.pop(index)
            groups.append(together)
            return True
    return False


def _beside_the_rest(graph: OperationGraph, embeddings: Set[int], capacities: Sequence[int]) -> PlacedGroups | None:
    rest = _by_turns(graph, embeddings)
    beside = sum(graph.group_bytes(group) for group in rest)
    order = sorted(range(len(capacities)), key=lambda device: (-capacities[device], device))
    for listed in (list(range(len(capacities))), order):
        packed = _pack(graph, embeddings, [capacities[device] - beside for device in listed])
        if packed is not None:
            used = [(device, group) for device, group in zip(listed, packed, strict=True) if group]
            everywhere = tuple(sorted(device for device, _ in used))
            return PlacedGroups(
                groups=(*(frozenset(group) for _, group in used), *map(frozenset, rest)),
                devices=(*((device,) for device, _ in used), *(everywhere for _ in rest)),
            )
    return None


def _by_turns(graph: OperationGraph, embeddings: Set[int]) -> list[set[int]]:
    """All but the embeddings, by how many turns between the two kinds lead to them: as few groups as have no cycle."""
    turns: dict[int, int] = {}
    for node in graph.operations:
        turns[node] = max(
            (
                turns[source] + ((source in embeddings) != (node in embeddings))
                for source in graph.inputs[node]
                if source in turns
            ),
            default=int(node in embeddings),
        )
    members: dict[int, list[int]] = {}
    for node, turn in turns.items():
        if node not in embeddings:
            members.setdefault(turn, []).append(node)
    return [graph.with_givens(members[turn]) for turn in sorted(members)]


def _pack(graph: OperationGraph, embeddings: Set[int], rooms: Sequence[int]) -> list[set[int]] | None:
    """Embeddings to the first room that holds them, from the largest where program order leaves some over."""
    in_order = sorted(embeddings)
    for order in (in_order, sorted(in_order, key=lambda node: (-graph.total_bytes[node], node))):
        groups: list[set[int]] = [set() for _ in rooms]
        for node in order:
            for group, room in zip(groups, rooms, strict=True):
                wider = group | graph.with_givens((node,))
                if graph.group_bytes(wider) <= room:
                    group |= wider
                    break
            else:
                break
        else:
            return groups
    return None
