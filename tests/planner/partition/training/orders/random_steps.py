"""Training steps drawn at random: uneven stages, skip edges, copies, several stages on a device, little memory."""

from __future__ import annotations

import numpy as np

from planner.partition.training.orders.room import Room
from planner.partition.training.step_graph import StageSeconds, TrainingStep


def random_step(
    rng: np.random.Generator, *, most_devices: int = 8, most_microbatches: int = 16, most_stages: int = 24
) -> tuple[TrainingStep, Room]:
    """A third of them with all the memory there could be use for, a third with what 1F1B needs, a third with little."""
    num_devices = int(rng.integers(2, most_devices + 1))
    microbatches = int(rng.integers(1, most_microbatches + 1))
    copies = _copies(rng, num_devices, most_stages)
    count = len(copies)
    edges = {(stage, stage + 1) for stage in range(count - 1)}
    for source in range(count - 2):
        if rng.random() < 0.1:
            edges.add((source, int(rng.integers(source + 2, count))))
    spread, message, ratio = rng.choice([0.05, 0.3, 0.8]), rng.choice([0.0, 0.05, 0.2]), rng.uniform(1, 3)
    hands_over = rng.choice([0.0, 0.5])
    stages = []
    for stage, forward in enumerate(np.exp(rng.normal(0, spread, count)).tolist()):
        received = message * rng.random() if stage and copies[stage] != copies[stage - 1] else 0.0
        sent = message * rng.random() if stage < count - 1 and copies[stage] != copies[stage + 1] else 0.0
        is_empty = bool(stage) and rng.random() < 0.05
        stages.append(
            StageSeconds(
                forward=0.0 if is_empty else forward,
                backward=0.0 if is_empty else forward * ratio,
                received=received,
                sent=sent,
                gradients_received=sent,
                gradients_sent=received,
                handover=sent * hands_over,
                gradients_handover=received * hands_over,
            )
        )
    step = TrainingStep(
        copies=copies,
        stages=tuple(stages),
        edges=tuple(sorted(edges)),
        gradient_edges=tuple(sorted(edges)),
        microbatches=microbatches,
    )
    return step, _room(rng, step)


def _copies(rng: np.random.Generator, num_devices: int, most_stages: int) -> tuple[tuple[int, ...], ...]:
    """One stage per device, rounds of all devices, there and back, anywhere, or copies."""
    kind = int(rng.integers(5))
    rounds = int(rng.integers(1, 4))
    if kind == 4:
        copies, first = [], 0
        while first < num_devices:
            several = int(min(rng.integers(1, 4), num_devices - first))
            copies.append(tuple(range(first, first + several)))
            first += several
        return tuple(copies)
    devices = list(range(num_devices))
    anywhere = rng.integers(0, num_devices, int(rng.integers(num_devices, 2 * num_devices + 1))).tolist()
    where = [devices, devices * rounds, [*devices, *reversed(devices)], anywhere][kind]
    return tuple((int(device),) for device in where[:most_stages])


def _room(rng: np.random.Generator, step: TrainingStep) -> Room:
    saved = tuple(int(size) for size in rng.integers(1, 100, len(step.copies)))
    most = [-(-step.microbatches // len(devices)) for devices in step.copies]
    kind, share = int(rng.integers(3)), 0.5 * rng.random()
    room = {}
    for device in {device for devices in step.copies for device in devices}:
        own = [stage for stage, devices in enumerate(step.copies) if device in devices]
        least = sum(saved[stage] for stage in own)
        all_kept = sum(saved[stage] * most[stage] for stage in own)
        one_f_one_b = sum(saved[stage] * min(most[stage], len(step.copies) - stage) for stage in own)
        room[device] = float([all_kept, one_f_one_b, least + share * (all_kept - least)][kind])
    return Room(saved_bytes=saved, device_bytes=room)
