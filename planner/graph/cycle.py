"""A cycle in what should have none, so that an error can name it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MAX_SHOWN = 12


def find_cycle(num_nodes: int, arcs: Iterable[tuple[int, int]]) -> list[int] | None:
    """Nodes of one cycle in the arcs' direction, none twice; None if there is no cycle. Linear; deterministic."""
    readers: list[list[int]] = [[] for _ in range(num_nodes)]
    producers: list[list[int]] = [[] for _ in range(num_nodes)]
    for source, target in arcs:
        readers[source].append(target)
        producers[target].append(source)
    waiting = [len(sources) for sources in producers]
    ready = [node for node in range(num_nodes) if not waiting[node]]
    for node in ready:
        for reader in readers[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ready) == num_nodes:
        return None
    # Every node that still waits, waits for another such: going back has to come round.
    path: dict[int, int] = {}
    node = next(node for node in range(num_nodes) if waiting[node])
    while node not in path:
        path[node] = len(path)
        node = next(producer for producer in producers[node] if waiting[producer])
    return list(path)[: path[node] - 1 if path[node] else None : -1]


def cycle_text(names: Sequence[str]) -> str:
    """ "a → b → a"; of a long cycle the beginning and the end."""
    closed = [*names, names[0]]
    if len(closed) > MAX_SHOWN:
        half = MAX_SHOWN // 2
        closed = [*closed[:half], f"({len(closed) - 2 * half} more)", *closed[-half:]]
    return " → ".join(closed)
