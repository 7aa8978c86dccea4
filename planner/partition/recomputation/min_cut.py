"""The least cut of a small network: Dinic's algorithm, 1970, on integer capacities. Exact."""

from __future__ import annotations

from collections import deque


class Network:
    """Nodes are ints; arcs are kept in pairs, each with its reverse beside it."""

    def __init__(self) -> None:
        self._head: list[int] = []
        self._room: list[int] = []
        self._arcs: dict[int, list[int]] = {}

    def add(self, source: int, target: int, capacity: int) -> None:
        for tail, head, room in ((source, target, capacity), (target, source, 0)):
            self._arcs.setdefault(tail, []).append(len(self._head))
            self._head.append(head)
            self._room.append(room)

    def source_side(self, source: int, sink: int) -> set[int]:
        """Of the least cut; the smallest such set. O(nodes^2 x arcs) at worst, far less in practice."""
        while sink in (levels := self._levels(source)):
            following = dict.fromkeys(levels, 0)
            while self._push(source, sink, levels, following):
                pass
        return set(levels)

    def _levels(self, source: int) -> dict[int, int]:
        """Arcs with room from the source to each node that they lead to."""
        levels = {source: 0}
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for arc in self._arcs.get(node, ()):
                head = self._head[arc]
                if self._room[arc] and head not in levels:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def _push(self, source: int, sink: int, levels: dict[int, int], following: dict[int, int]) -> bool:
        """As much as fits along one shortest path; False where none is left. `following`: each node's next arc."""
        path: list[int] = []
        node = source
        while node != sink:
            arcs = self._arcs[node]
            while following[node] < len(arcs):
                arc = arcs[following[node]]
                head = self._head[arc]
                if self._room[arc] and levels.get(head) == levels[node] + 1:
                    path.append(arc)
                    node = head
                    break
                following[node] += 1
            else:
                if not path:
                    return False
                node = self._head[path.pop() ^ 1]
                following[node] += 1
        amount = min(self._room[arc] for arc in path)
        for arc in path:
            self._room[arc] -= amount
            self._room[arc ^ 1] += amount
        return True
