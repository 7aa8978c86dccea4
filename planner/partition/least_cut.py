"""Least cuts of a directed network, by Dinic's algorithm (1970), on whole numbers: exact, and the same everywhere."""

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
        """Of the least cut; the smallest such set. O(nodes^2 x arcs) at worst, far less in practice.

        What flows stays in the network: it answers once.
        """
        while sink in (levels := self._levels(source, sink)):
            self._fill(source, sink, levels)
        return set(levels)

    def least_cut(self, source: int, sink: int) -> int:
        """Its capacity. Leaves the network as it was. Looks no further than the sink: where that is near everything,
        large networks are as quick as small ones."""
        before, amount = self._room.copy(), 0
        while sink in (levels := self._levels(source, sink)):
            amount += self._fill(source, sink, levels)
        self._room = before
        return amount

    def _levels(self, source: int, sink: int) -> dict[int, int]:
        """Arcs with room from the source to each node that they lead to; of those nearer than the sink if it is."""
        levels = {source: 0}
        waiting = deque([source])
        while waiting and sink not in levels:
            node = waiting.popleft()
            for arc in self._arcs.get(node, ()):
                head = self._head[arc]
                if self._room[arc] and head not in levels:
                    levels[head] = levels[node] + 1
                    waiting.append(head)
        return levels

    def _fill(self, source: int, sink: int, levels: dict[int, int]) -> int:
        """What shortest paths hold, until they hold no more."""
        following, amount = dict.fromkeys(levels, 0), 0
        while more := self._push(source, sink, levels, following):
            amount += more
        return amount

    def _push(self, source: int, sink: int, levels: dict[int, int], following: dict[int, int]) -> int:
        """As much as fits along one shortest path; 0 where none is left. `following`: each node's next arc."""
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
                    return 0
                node = self._head[path.pop() ^ 1]
                following[node] += 1
        amount = min(self._room[arc] for arc in path)
        for arc in path:
            self._room[arc] -= amount
            self._room[arc ^ 1] += amount
        return amount
