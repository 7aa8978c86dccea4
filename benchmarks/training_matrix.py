"""Trainings drawn at random, on daemons, each beside the unsplit step: every model, cut, schedule and size at once.

    python -m benchmarks.training_matrix [cases] [first] [seconds]

A case is its seed's: one of 12 models, 1 to 7 stages on 1 to 4 daemons, any schedule and routing, copies of stages,
frozen parts, dropout, stages that compute their activations again, float32 or float64, clipping, and five steps of
uneven microbatches, whose number changes. It is right where losses, gradient norms and weights after the last step are
those of torch's own step; with dropout, of one stage in one process. Ends early after so many seconds, between cases.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.errors import Infeasible, PlannerError
from planner.partition.objective import Training
from planner.plan.options import AotBasedMode, PlanOptions
from tests.builders.training_cases import MAX_DEVICES, DrawnTraining, drawn_training
from tests.stage_daemon.runtime.training.devices import SEED
from tests.stage_daemon.runtime.training.unsplit import RATE, Trained, difference, unsplit

MEMORY_BYTES = 512 << 20
LIMITS = {False: 1e-6, True: 1e-12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`failure` says what went wrong, or why there is no such plan."""

    drawn: DrawnTraining
    difference: float = float("nan")
    failure: str = ""
    is_refused: bool = False

    @property
    def is_right(self) -> bool:
        return self.difference <= LIMITS[self.drawn.is_double]


def measured(client: PlannerClient, drawn: DrawnTraining) -> Row:
    try:
        return Row(drawn=drawn, difference=difference(on_daemons(client, drawn), unsplit(drawn)))
    except Infeasible as error:
        return Row(drawn=drawn, failure=str(error), is_refused=True)
    except (PlannerError, AssertionError, RuntimeError) as error:
        return Row(drawn=drawn, failure=f"{type(error).__name__}: {error}")


def on_daemons(client: PlannerClient, drawn: DrawnTraining) -> Trained:
    case = drawn.case()
    exported = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes)
    graph = client.submit(exported)
    device_ids = [one.device.id for one in client.list_devices()][: drawn.num_devices * (2 if drawn.copies else 1)]
    options = PlanOptions(
        mode=AotBasedMode(
            partition_of_node=tuple(drawn.stage_of_node(exported.graph)),
            device_of_partition=tuple(device_ids[device] for device in drawn.devices),
        ),
        saturate_host=drawn.copies,
        routing=drawn.routing,
        training=Training(schedule=drawn.schedule, microbatches=drawn.microbatches, activations=drawn.activations),
    )
    deployment = client.deploy(client.create_plan(graph.id, options, device_ids=device_ids).id)
    try:
        with client.train(
            deployment.id, f"sgd:lr={RATE},momentum=0.9", clip_norm=drawn.clip_norm, seed=SEED
        ) as trainer:
            steps = [
                trainer.step_microbatches([Batch(args=one.args, kwargs=one.kwargs) for one in batches])
                for batches in drawn.steps()
            ]
            states = trainer.state_dict()
    finally:
        client.stop(deployment.id)
    trained = {name for name, one in case.module.named_parameters(remove_duplicate=False) if one.requires_grad}
    return Trained(
        losses=[list(step.losses) for step in steps],
        norms=[step.gradient_norm for step in steps],
        states={name: state for name, state in states.items() if name in trained},
    )


def main(num_cases: int = 200, first: int = 0, limit_seconds: float = float("inf")) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    rows: list[Row] = []
    with one_thread_daemons(MAX_DEVICES, MEMORY_BYTES) as (_, client):
        for seed in range(first, first + num_cases):
            if time.monotonic() - began > limit_seconds:
                break
            rows.append(row := measured(client, drawn_training(seed)))
            verdict = "right" if row.is_right else "refused" if row.is_refused else "WRONG"
            print(f"{verdict} {row.difference:.1e} {row.drawn} {row.failure}", flush=True)
    _print("all", rows)
    for family in dict.fromkeys(row.drawn.family for row in rows):
        _print(family, [row for row in rows if row.drawn.family == family])
    for schedule in dict.fromkeys(row.drawn.schedule for row in rows):
        _print(schedule.value, [row for row in rows if row.drawn.schedule is schedule])
    for name in ("copies", "draws_random", "is_partly_frozen", "is_double"):
        _print(name, [row for row in rows if getattr(row.drawn, name)])


def _print(name: str, rows: Sequence[Row]) -> None:
    run = [row for row in rows if not row.is_refused]
    same = sum(row.difference == 0.0 for row in run)
    singles = [row.difference for row in run if not row.drawn.is_double and not row.failure]
    median = statistics.median(singles) if singles else 0.0
    cells = [
        name,
        len(run),
        sum(row.is_right for row in run),
        same,
        f"{median:.0e}",
        f"{max(singles, default=0.0):.0e}",
    ]
    print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
