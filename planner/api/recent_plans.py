"""The plans that were asked for last, as they are sent."""

from __future__ import annotations

from collections import OrderedDict

# Five thousand plans of a few stages, or two hundred of 64 stages and 20,000 nodes.
MOST_BYTES = 32 << 20


class RecentPlans:
    """Serialized plans by id. A plan never changes once it is stored, and to make one of its rows takes milliseconds.

    Whoever asks makes sure that it is still stored: another planner on the database may have deleted it. What was not
    asked for the longest makes room; a plan larger than all the room is not kept.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._contents: OrderedDict[str, bytes] = OrderedDict()

    def get(self, plan_id: str) -> bytes | None:
        content = self._contents.get(plan_id)
        if content is not None:
            self._contents.move_to_end(plan_id)
        return content

    def keep(self, plan_id: str, content: bytes) -> None:
        self.forget(plan_id)
        if len(content) > self._most_bytes:
            return
        self._contents[plan_id] = content
        self._num_bytes += len(content)
        while self._num_bytes > self._most_bytes:
            self.forget(next(iter(self._contents)))

    def forget(self, plan_id: str) -> None:
        self._num_bytes -= len(self._contents.pop(plan_id, b""))
