"""How many microbatches each stage may keep, where its device has room for so many bytes of what they save.

A device that holds several stages has to share its room among them: as memory is planned, each counts as many
microbatches as it ever keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

from planner.partition.training.step_graph import TrainingStep

# Halvings of the interval in which the largest scale is sought: to a thousandth of a microbatch of MAX_MICROBATCHES.
_HALVINGS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """`saved_bytes` [stages]: of one microbatch. `device_bytes`: by device, for what all its stages save."""

    saved_bytes: tuple[int, ...]
    device_bytes: Mapping[int, float]

    def fits(self, step: TrainingStep, kept: Sequence[int]) -> bool:
        """Whether every copy of every stage may keep so many; one microbatch always may be."""
        filled = dict.fromkeys(self.device_bytes, 0.0)
        for devices, count, size in zip(step.copies, kept, self.saved_bytes, strict=True):
            for device in devices:
                filled[device] += count * size
        return all(
            filled[device] <= room or all(kept[stage] <= 1 for stage, own in enumerate(step.copies) if device in own)
            for device, room in self.device_bytes.items()
        )


def most_alone(step: TrainingStep, room: Room) -> list[int]:
    """[stages] the most that each may keep while the others of its devices keep one microbatch."""
    ones = [1] * len(step.copies)
    return [_raised(step, room, ones, stage, most)[stage] for stage, most in enumerate(most_of_copies(step))]


def shared(step: TrainingStep, room: Room, need: Sequence[float]) -> list[int]:
    """[stages] in proportion to `need`, then as many as there is still room for, by need."""
    most = most_of_copies(step)
    low, high = 0.0, max(1.0, step.microbatches / min(need))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if room.fits(step, _scaled(need, middle, most)):
            low = middle
        else:
            high = middle
    kept = _scaled(need, low, most)
    for stage in sorted(range(len(kept)), key=lambda one: (-need[one], one)):
        kept = _raised(step, room, kept, stage, most[stage])
    return kept


def most_of_copies(step: TrainingStep) -> list[int]:
    """[stages] all microbatches that its copies take."""
    return [max(1, -(-step.microbatches // len(devices))) for devices in step.copies]


def _scaled(need: Sequence[float], scale: float, most: Sequence[int]) -> list[int]:
    return [min(limit, max(1, int(scale * of_stage))) for limit, of_stage in zip(most, need, strict=True)]


def _raised(step: TrainingStep, room: Room, kept: Sequence[int], stage: int, most: int) -> list[int]:
    """With as many more in one stage as fit, and `most` altogether."""
    low, high = kept[stage], most

    def with_count(count: int) -> list[int]:
        return [*kept[:stage], count, *kept[stage + 1 :]]

    while low < high:
        middle = (low + high + 1) // 2
        if room.fits(step, with_count(middle)):
            low = middle
        else:
            high = middle - 1
    return with_count(low)


def neighbours(step: TrainingStep, room: Room, kept: Sequence[int]) -> Iterator[list[int]]:
    """With one microbatch less in one stage, and as many more as then fit in another one of the same devices."""
    most = most_of_copies(step)
    for giver, taker in permutations(range(len(kept)), 2):
        if kept[giver] > 1 and kept[taker] < most[taker] and set(step.copies[giver]) & set(step.copies[taker]):
            fewer = [*kept[:giver], kept[giver] - 1, *kept[giver + 1 :]]
            more = _raised(step, room, fewer, taker, most[taker])
            if more[taker] > kept[taker]:
                yield more


def splits(step: TrainingStep, room: Room, device: int, *, at_most: int) -> list[list[int]]:
    """Ways to share a device's room among its stages [stages], the others keeping the most that they ever could.

    Any way in which it can be shared leaves each stage at most as much as one of these. Empty where they are too many.
    """
    most = most_alone(step, room)
    own = [stage for stage, devices in enumerate(step.copies) if device in devices]
    if len(own) < 2 or math.prod(most[stage] for stage in own[:-1]) > at_most:
        return []
    only = replace(room, device_bytes={device: room.device_bytes[device]})
    ways = []
    for counts in product(*(range(1, most[stage] + 1) for stage in own[:-1])):
        kept = list(most)
        for stage, count in zip(own, (*counts, 1), strict=True):
            kept[stage] = count
        alone = replace(step, copies=tuple((device,) if device in devices else () for devices in step.copies))
        if only.fits(alone, kept):
            ways.append(_raised(alone, only, kept, own[-1], most[own[-1]]))
    return ways
