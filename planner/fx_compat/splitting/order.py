"""The order in which partitions are called.

It must keep what passes between them, and the order of every two calls of which one writes what the other touches or
which both draw random numbers. torch.fx looks at the former only. So its order is taken where it keeps the latter too,
and another one where not; if there is none, no arrangement of these partitions computes what the module does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import fx

from planner.fx_compat.splitting.effects import Ambient
from planner.fx_compat.splitting.errors import PartitionCycle
from planner.fx_compat.splitting.partitions import Partitioning
from planner.fx_compat.splitting.storage import GraphEffects, StorageClasses, graph_effects
from planner.graph.cycle import find_cycle

# (before, after) to the two nodes that ask for it; in the order in which they were found.
Edges = Mapping[tuple[str, str], tuple[fx.Node, fx.Node]]


def order_partitions(module: fx.GraphModule, split: Partitioning, *, keep_original_order: bool) -> tuple[str, ...]:
    """Names in call order: as they first appear where that is possible and asked for, else torch.fx's order."""
    names = tuple(split.partitions)
    arrange = _by_appearance if keep_original_order else _last_ready_first
    effects = graph_effects(module)
    by_data = arrange(names, split.uses)
    if by_data is None:
        raise _cycle(names, split.uses, by_data_only=True)
    if effects.is_pure:
        return by_data
    certain = _effect_edges(module, split.name_of, effects, only_certain=True)
    possible = certain | _effect_edges(module, split.name_of, effects, only_certain=False)
    if _keeps(by_data, possible):
        return by_data
    # What merely may matter gives way where it cannot be kept as well.
    for edges in (possible, certain):
        if (order := arrange(names, {**split.uses, **edges})) is not None:
            return order
    raise _cycle(names, {**split.uses, **certain}, by_data_only=False)


def effect_pairs(module: fx.GraphModule) -> tuple[tuple[fx.Node, fx.Node], ...]:
    """(earlier, later) operations that must keep their order whatever partitions they are in; data aside."""
    effects = graph_effects(module)
    if effects.is_pure:
        return ()
    operations = {node: node.name for node in module.graph.nodes if node.op.startswith("call_")}
    return tuple(_effect_edges(module, operations, effects, only_certain=True).values())


def _last_ready_first(names: tuple[str, ...], edges: Edges) -> tuple[str, ...] | None:
    """Kahn's order with a stack, as torch.fx has it; None if there is a cycle. Linear."""
    after, waiting = _neighbours(names, edges)
    ready = [name for name in names if not waiting[name]]
    order: list[str] = []
    while ready:
        order.append(ready.pop())
        for name in after[order[-1]]:
            waiting[name] -= 1
            if not waiting[name]:
                ready.append(name)
    return tuple(order) if len(order) == len(names) else None


def _by_appearance(names: tuple[str, ...], edges: Edges) -> tuple[str, ...] | None:
    """Always the first of those that are ready: the order of `names` itself wherever that is an order at all."""
    after, waiting = _neighbours(names, edges)
    positions = {name: position for position, name in enumerate(names)}
    ready = [positions[name] for name in names if not waiting[name]]
    order: list[str] = []
    while ready:
        order.append(names[heapq.heappop(ready)])
        for name in after[order[-1]]:
            waiting[name] -= 1
            if not waiting[name]:
                heapq.heappush(ready, positions[name])
    return tuple(order) if len(order) == len(names) else None


def _neighbours(names: tuple[str, ...], edges: Edges) -> tuple[dict[str, list[str]], dict[str, int]]:
    after: dict[str, list[str]] = {name: [] for name in names}
    waiting = dict.fromkeys(names, 0)
    for one, other in edges:
        after[one].append(other)
        waiting[other] += 1
    return after, waiting


def _keeps(order: tuple[str, ...], edges: Iterable[tuple[str, str]]) -> bool:
    positions = {name: position for position, name in enumerate(order)}
    return all(positions[one] < positions[other] for one, other in edges)


@dataclass(slots=True)
class _History:
    """Of one resource: the last call that wrote it, and by partition the first call since that read it."""

    writer: fx.Node | None = None
    readers: dict[str, fx.Node] = field(default_factory=dict)


def _effect_edges(
    module: fx.GraphModule, name_of: Mapping[fx.Node, str], effects: GraphEffects, *, only_certain: bool
) -> dict[tuple[str, str], tuple[fx.Node, fx.Node]]:
    classes = StorageClasses(module, effects, only_certain=only_certain)
    views_read = effects.reshapes_in_place
    # Even a partition with no more than the end of an autocast region sets the mode that it was under.
    mode = {Ambient.MODE: None} if _sets_mode(effects) else {}
    histories: dict[int | Ambient, _History] = {}
    edges: dict[tuple[str, str], tuple[fx.Node, fx.Node]] = {}
    for node, name in name_of.items():
        written = dict.fromkeys(_written(node, effects, classes, only_certain=only_certain))
        read = _read(node, effects, classes, views_read=views_read)
        for resource in (*read, *mode, *written):
            history = histories.setdefault(resource, _History())
            earlier = [history.writer] if history.writer is not None else []
            if resource in written:
                earlier += history.readers.values()
                histories[resource] = _History(writer=node)
            else:
                history.readers.setdefault(name, node)
            for before in earlier:
                if name_of[before] != name:
                    edges.setdefault((name_of[before], name), (before, node))
    return edges


def _written(
    node: fx.Node, effects: GraphEffects, classes: StorageClasses, *, only_certain: bool
) -> Iterator[int | Ambient]:
    for write in effects.by_node[node].writes:
        if write.certain or not only_certain:
            yield write.resource if isinstance(write.resource, Ambient) else classes.of(write.resource)


def _read(node: fx.Node, effects: GraphEffects, classes: StorageClasses, *, views_read: bool) -> dict[int, None]:
    effect = effects.by_node[node]
    arguments = node.all_input_nodes if views_read or not effect.only_views else ()
    states = (state for module in effect.reads for state in (*module.parameters(), *module.buffers()))
    return dict.fromkeys(classes.of(item) for item in (*arguments, *states))


def _sets_mode(effects: GraphEffects) -> bool:
    return any(write.resource is Ambient.MODE for effect in effects.by_node.values() for write in effect.writes)


def _cycle(names: tuple[str, ...], edges: Edges, *, by_data_only: bool) -> PartitionCycle:
    number = {name: index for index, name in enumerate(names)}
    indexes = find_cycle(len(names), ((number[one], number[other]) for one, other in edges))
    cycle = [names[index] for index in indexes or ()]
    steps = []
    for one, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        before, after = edges[one, other]
        steps.append(f"{after.name} in partition {other} must come after {before.name} in partition {one}")
    why = "" if by_data_only else " Besides data, writes in place and random draws must keep their order."
    advice = "Put these nodes into one partition, or cut elsewhere"
    return PartitionCycle(
        f"cycle exists between partitions! {'; '.join(steps)}.{why} {advice}",
        partitions=", ".join(cycle),
    )
