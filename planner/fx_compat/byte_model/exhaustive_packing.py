"""Some placement of operations within memory, where the quick ways find none: so that nothing is refused in error."""

from __future__ import annotations

from collections.abc import Sequence

from planner.fx_compat.byte_model.transfer_problem import Occupancy, TransferProblem

_MAX_STEPS = 60_000


def any_fit(problem: TransferProblem) -> list[int] | None:
    """A device by operation. Exact on small programs; beyond _MAX_STEPS operations tried, None may be in error."""
    for most_room_first in (False, True):
        devices = _greedy(problem, most_room_first)
        if devices is not None:
            return devices
    return _search(problem)


def _greedy(problem: TransferProblem, most_room_first: bool) -> list[int] | None:
    """Operations in program order, to the device where they add least that has room: the fullest, or the emptiest."""
    occupancy = Occupancy(problem)
    way = -1 if most_room_first else 1
    for operation in range(problem.num_operations):
        choices = []
        for device, room in enumerate(problem.capacities):
            added = occupancy.added_bytes(operation, device)
            if occupancy.used[device] + added <= room:
                choices.append((added, way * (room - occupancy.used[device]), device))
        if not choices:
            return None
        occupancy.put(operation, min(choices)[2])
    return occupancy.device


def _search(problem: TransferProblem) -> list[int] | None:
    """Depth-first in program order, where what an operation adds is final. Empty devices of one size are one choice."""
    n, occupancy = problem.num_operations, Occupancy(problem)
    rest = [0] * (n + 1)
    for operation in range(n - 1, -1, -1):
        rest[operation] = rest[operation + 1] + problem.total_bytes[operation]
    choices: list[list[int]] = [_choices(problem, occupancy, 0, rest)]
    for _ in range(_MAX_STEPS):
        if not choices:
            return None
        if not choices[-1]:
            choices.pop()
            if choices:
                occupancy.take(len(choices) - 1)
            continue
        occupancy.put(len(choices) - 1, choices[-1].pop())
        if len(choices) == n:
            return occupancy.device
        choices.append(_choices(problem, occupancy, len(choices), rest))
    return None


def _choices(problem: TransferProblem, occupancy: Occupancy, operation: int, rest: Sequence[int]) -> list[int]:
    """Best last."""
    if rest[operation] > sum(problem.capacities) - sum(occupancy.used):
        return []
    choices, empty = [], set[int]()
    for device, room in enumerate(problem.capacities):
        if not occupancy.used[device]:
            if room in empty:
                continue
            empty.add(room)
        added = occupancy.added_bytes(operation, device)
        left = room - occupancy.used[device] - added
        if left >= 0:
            choices.append((-added, -left, device))
    return [device for _, _, device in sorted(choices)]
