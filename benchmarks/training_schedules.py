"""Orders of training steps drawn at random: the best that is searched beside the named schedules, in the same memory.

Run from the repository's root: `.venv/bin/python -m benchmarks.training_schedules`. 500 steps of 2 to 8 devices and 1
to 16 microbatches (tests/planner/partition/training/orders/random_steps.py draws them): uneven stages, skip edges,
several stages on a device, copies, and in two of three little memory. Prints, by whether a named schedule fits memory
(and ends with two buffers per edge), how far the best is above its bound, how often that is proven, how much longer the
best named schedule takes, and CPU seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.partition.objective import NAMED_SCHEDULES, PipelineSchedule
from planner.partition.training.memory import counted_microbatches
from planner.partition.training.named_orders import device_orders
from planner.partition.training.orders import buffers
from planner.partition.training.orders.best_order import best_order
from planner.partition.training.orders.room import Room
from planner.partition.training.step_graph import TrainingStep
from planner.partition.training.step_time import step_seconds
from tests.planner.partition.training.orders.random_steps import random_step

STEPS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    gap: float
    named: dict[PipelineSchedule, float]
    cpu_seconds: float

    @property
    def over_named(self) -> float:
        """The best named schedule's seconds over the best order's; not a number where none fits."""
        return min(self.named.values(), default=float("nan"))


def measured(step: TrainingStep, room: Room) -> Row:
    start = time.process_time()
    best = best_order(step, room)
    cpu_seconds = time.process_time() - start
    named = {}
    for schedule in NAMED_SCHEDULES:
        orders = device_orders(schedule, step.microbatches, step.copies)
        if room.fits(step, counted_microbatches(orders, len(step.stages))) and buffers.ends(step, orders):
            named[schedule] = step_seconds(step, orders) / best.seconds
    return Row(gap=best.seconds / best.lower_bound_seconds - 1, named=named, cpu_seconds=cpu_seconds)


def main() -> None:
    best_order(*random_step(np.random.default_rng(0)))  # compiles
    rows = [measured(*random_step(np.random.default_rng(seed))) for seed in range(STEPS)]
    title = f"{'steps':<32}{'count':>6}{'gap':>8}{'p95':>8}{'proven':>8}"
    print(f"{title}{'named/best':>12}{'worse':>7}{'CPU s':>7}{'max':>6}")
    _print("all", rows)
    _print("where a named schedule fits", [row for row in rows if row.named])
    _print("where none fits", [row for row in rows if not row.named])
    for schedule in NAMED_SCHEDULES:
        over = [row.named[schedule] for row in rows if schedule in row.named]
        print(f"{schedule.value:<18} fits {len(over):>4} steps and takes {np.mean(over):.3f} x the best order's time")


def _print(name: str, rows: Sequence[Row]) -> None:
    gaps = np.array([row.gap for row in rows])
    over = np.array([row.over_named for row in rows])
    cpu_seconds = np.array([row.cpu_seconds for row in rows])
    finite = over[np.isfinite(over)]
    mean = f"{finite.mean():.3f}" if finite.size else "-"
    print(
        f"{name:<32}{len(rows):>6}{gaps.mean():>8.2%}{np.quantile(gaps, 0.95):>8.2%}{(gaps < 1e-8).mean():>8.1%}"
        f"{mean:>12}{(finite < 1 - 1e-9).sum():>7}{cpu_seconds.mean():>7.2f}{cpu_seconds.max():>6.2f}"
    )


if __name__ == "__main__":
    main()
