"""Which values share storage, and so which nodes no cut may part.

A stage gets copies of what it receives. A cut between an in-place write and another access of the same storage would
therefore give wrong numbers without an error, as would two copies of a state that is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from planner.graph.effects import copies, shares, writes
from planner.graph.ir import Graph, values_in, values_read


def storage_roots(graph: Graph) -> Mapping[int, int]:
    """Value id to the id of the value whose storage it shares; its own id if it owns its storage.

    States of one tie group share the storage of the first of them.
    """
    sources = storage_sources(graph)
    roots = {value.id: value.id for value in graph.values}
    for first, other in _tied_states(graph):
        roots[other] = first
    for node in graph.nodes:
        for output in node.outputs:
            if output and sources[output] != output:
                roots[output] = roots[sources[output]]
    return roots


def storage_sources(graph: Graph) -> Mapping[int, int]:
    """Value id to the id of the value that it is a view of, one step back; its own id if a call made its storage."""
    sources = {value.id: value.id for value in graph.values}
    values = graph.values_by_id()
    for node in graph.nodes:
        outputs: set[int] = set()
        for output, source in shares(graph, node, values):
            if output not in outputs:
                outputs.add(output)
                sources[output] = output if copies(node, values[output], values[source]) else source
    return sources


def no_cut_groups(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups of two or more node indexes, ascending, each of which must lie in one stage.

    For storage that some node writes: its producer, its views and every access up to the last write; a later access
    reads what is final and may lie in a later stage. For a state or an input of the graph that is written: every
    access, since a later stage would have its own, unwritten copy; and the last node, so that the last stage has it,
    if the graph returns it: a state must not be on its way while the next microbatch writes it.
    """
    groups = DisjointSets()
    returned = {value for output in graph.outputs for value in values_in(output.content)}
    for storage in written_storages(graph):
        together = storage.accesses if storage.has_copies else storage.accesses_to_last_write
        if storage.has_copies and not returned.isdisjoint(storage.value_ids):
            together = [*together, len(graph.nodes) - 1]
        for index in together[1:]:
            groups.join(together[0], index)
    return groups.sets()


@dataclass(slots=True, kw_only=True)
class WrittenStorage:
    """Storage that some node writes. `has_copies`: an input or a state, which other stages could hold too."""

    value_ids: tuple[int, ...]
    accesses: list[int] = field(default_factory=list)
    last_write: int = -1
    has_copies: bool

    @property
    def accesses_to_last_write(self) -> list[int]:
        return [index for index in self.accesses if index <= self.last_write]


def written_storages(graph: Graph) -> tuple[WrittenStorage, ...]:
    """Every storage with a write (or with a state that is marked as mutated), in order of its first value's id."""
    sharing = _may_share(graph)
    outside_values = {value for item in graph.inputs for value in values_in(item.content)}
    outside_values.update(state.value_id for state in graph.states)
    written = {sharing.find(state.value_id) for state in graph.states if state.mutated}
    written.update(sharing.find(value) for node in graph.nodes for value in writes(graph, node))
    storages = {
        sharing.find(members[0]): WrittenStorage(value_ids=members, has_copies=not outside_values.isdisjoint(members))
        for members in sharing.sets(least=1, items=(value.id for value in graph.values))
        if sharing.find(members[0]) in written
    }
    if storages:
        _record_accesses(graph, sharing, storages)
    return tuple(storages.values())


def _record_accesses(graph: Graph, sharing: DisjointSets, storages: Mapping[int, WrittenStorage]) -> None:
    for index, node in enumerate(graph.nodes):
        touched = (*values_read(node), *(value for value in node.outputs if value))
        for representative in {sharing.find(value) for value in touched}:
            if representative in storages:
                storages[representative].accesses.append(index)
        for value in writes(graph, node):
            storages[sharing.find(value)].last_write = index


def _may_share(graph: Graph) -> DisjointSets:
    sharing = DisjointSets()
    values = graph.values_by_id()
    for first, other in _tied_states(graph):
        sharing.join(first, other)
    for node in graph.nodes:
        for output, source in shares(graph, node, values):
            sharing.join(source, output)
    return sharing


def _tied_states(graph: Graph) -> Iterator[tuple[int, int]]:
    first_of_group: dict[int, int] = {}
    for state in graph.states:
        if state.tie_group:
            first = first_of_group.setdefault(state.tie_group, state.value_id)
            yield first, state.value_id


class DisjointSets:
    """Union-find over ints; the least member stands for its set. Nearly linear."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find(self, item: int) -> int:
        parents = self._parents
        root = item
        while (parent := parents.setdefault(root, root)) != root:
            root = parent
        while parents[item] != root:
            parents[item], item = root, parents[item]
        return root

    def join(self, one: int, other: int) -> None:
        low, high = sorted((self.find(one), self.find(other)))
        self._parents[high] = low

    def sets(self, *, least: int = 2, items: Iterable[int] = ()) -> tuple[tuple[int, ...], ...]:
        """Members of each set of at least `least`, ascending; sets in order of their least member."""
        members: dict[int, list[int]] = {}
        for item in sorted({*self._parents, *items}):
            members.setdefault(self.find(item), []).append(item)
        return tuple(tuple(items_of_set) for items_of_set in members.values() if len(items_of_set) >= least)
