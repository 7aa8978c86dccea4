"""Copies of everything on idle devices, as torch.fx's host saturation gives them out."""

from __future__ import annotations

from collections.abc import Sequence


def replicas_of_devices(
    capacities: Sequence[int], needed_bytes: Sequence[int], able: Sequence[Sequence[bool]] | None = None
) -> tuple[tuple[int, ...], ...]:
    """By device: the idle devices that run copies of all it holds. `needed_bytes` is -1 for an idle device.

    `able` [used, idle]: whether the idle one can run all that the used one holds; None where all can.

    While idle devices suffice, each used device in list order gets the smallest idle one that holds what it holds; a
    round in which one of them gets none gives nothing.
    """
    copies: list[list[int]] = [[] for _ in capacities]
    used = [device for device, needed in enumerate(needed_bytes) if needed >= 0]
    idle = [device for device, needed in enumerate(needed_bytes) if needed < 0]
    while used and len(idle) >= len(used):
        left, copied = list(idle), list[tuple[int, int]]()
        for device in used:
            fitting = [
                other
                for other in left
                if capacities[other] >= needed_bytes[device] and (able is None or able[device][other])
            ]
            if not fitting:
                return tuple(map(tuple, copies))
            copy = min(fitting, key=capacities.__getitem__)
            left.remove(copy)
            copied.append((device, copy))
        for device, copy in copied:
            copies[device].append(copy)
        idle = left
    return tuple(map(tuple, copies))
