"""An order of things that wait for each other: Kahn 1962."""

from __future__ import annotations

from collections.abc import Sequence


def topological_order(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[int]:
    """Each after all before it, otherwise by number as they become ready; what a cycle holds up is left out. Linear."""
    waiting = [len(own) for own in before]
    order = [item for item, left in enumerate(waiting) if not left]
    for item in order:
        for reader in after[item]:
            waiting[reader] -= 1
            if not waiting[reader]:
                order.append(reader)
    return order
