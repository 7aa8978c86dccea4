"""How far predicted training steps of profiled plans are from real ones: small models and schedules on two CPU daemons.

    python -m benchmarks.predicted_steps [--parts] [model ...]

Each model is profiled once, backward passes too, then planned, deployed and trained under each schedule. A step is
compared as its caller sees it, and the bubble as the daemons measure it. Medians of the steps of one deployment count;
the machine should have nothing else to do, for both are clocks. With --parts each step is taken apart by device and
action, milliseconds planned and measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.predicted_stage_times import MEMORY_BYTES, MODELS, Model
from benchmarks.step_parts import parts
from examples import tiny_gpt
from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.training import StepResult
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, CutMode, Mode, PlanOptions
from planner.schedule.prediction import idle_share, predict
from tests.builders.training_cases import with_loss

MICROBATCHES = 8
NUM_STAGES = 2
BALANCED = BalancedMode(num_stages=NUM_STAGES)
SCHEDULES = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.ZERO_BUBBLE)
NUM_WARMUP = 3
STEP_SECONDS = 4.0
LEAST_STEPS, MOST_STEPS = 8, 60
_PARTS = "--parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    model: Model
    mode: Mode = BALANCED


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of a step."""

    seconds: float
    bubble_share: float


def _trained(name: str, mode: Mode = BALANCED) -> Callable[[], TrainedModel]:
    """One whose stages are measured in inference, with a loss and its dropout."""

    def make() -> TrainedModel:
        model = MODELS[name]()
        model = Model(module=with_loss(model.module).train(), batch=model.batch)
        return TrainedModel(model=model, mode=mode)

    return make


def _tiny_gpt() -> TrainedModel:
    module, _, _, _ = tiny_gpt.build()
    ids, targets = next(tiny_gpt.batches())
    return TrainedModel(model=Model(module=module, batch=Batch(args=(ids[:4], targets[:4]))))


# An encoder, decoders (tied, and one cut unevenly), an encoder with a decoder, convolutions with and without edges that
# skip stages, experts, tables of which few rows get gradients, and products of matrices alone.
TRAINED: Mapping[str, Callable[[], TrainedModel]] = {
    "bert, 4 x 64": _trained("bert, 4 x 64"),
    "gpt2": _trained("gpt2"),
    "gpt2, uneven": _trained("gpt2", CutMode(module_paths=("model.transformer.h.0",))),
    "tiny gpt, tied": _tiny_gpt,
    "llama": _trained("llama"),
    "t5": _trained("t5"),
    "vit": _trained("vit"),
    "dlrm": _trained("dlrm"),
    "mixture": _trained("mixture"),
    "resnet50": _trained("resnet50"),
    "unet": _trained("unet"),
    "layers, 64 x 1024": _trained("layers, 64 x 1024"),
}


def main(*arguments: str) -> None:
    names = [name for name in arguments if name != _PARTS]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| model | schedule | predicted | measured | off by | bubble predicted | measured | points |")
    print("|---|---|---|---|---|---|---|---|")
    errors: list[float] = []
    points: list[float] = []
    with one_thread_daemons(NUM_STAGES, MEMORY_BYTES) as (cluster, client):
        for name in names or TRAINED:
            trained = TRAINED[name]()
            batch = trained.model.batch
            graph = client.submit(export(trained.model.module, batch.args, dict(batch.kwargs)))
            client.profile_graph(graph.id, device_ids=[cluster.device_id(0)], backward=True)
            for schedule in SCHEDULES:
                predicted, real = measured(graph.id, trained, schedule, client, shows_parts=_PARTS in arguments)
                off = predicted.seconds / real.seconds - 1
                bubble = predicted.bubble_share - real.bubble_share
                errors.append(abs(off))
                points.append(abs(bubble))
                cells = [
                    name,
                    schedule.value,
                    f"{predicted.seconds * 1e3:.1f} ms",
                    f"{real.seconds * 1e3:.1f} ms",
                    f"{off:+.1%}",
                    f"{predicted.bubble_share:.1%}",
                    f"{real.bubble_share:.1%}",
                    f"{bubble * 100:+.1f}",
                ]
                print("| " + " | ".join(cells) + " |", flush=True)
    print(f"steps off by: {_spread(errors)}; bubbles, points: {_spread(points)}")


def measured(
    graph_id: str, trained: TrainedModel, schedule: PipelineSchedule, client: PlannerClient, *, shows_parts: bool
) -> tuple[Times, Times]:
    """(what the plan predicts, what its steps took)."""
    training = Training(schedule=schedule, microbatches=MICROBATCHES, optimizer_bytes_per_parameter=0.0)
    plan = client.create_plan(graph_id, PlanOptions(mode=trained.mode, training=training))
    assert len(plan.stages) == NUM_STAGES
    assert plan.step_seconds is not None
    microbatches = [trained.model.batch] * MICROBATCHES
    num_steps = int(min(MOST_STEPS, max(LEAST_STEPS, STEP_SECONDS / plan.step_seconds)))
    deployment = client.deploy(plan.id)
    with client.train(deployment.id, "sgd:lr=1e-5") as trainer:
        steps, calls = list[StepResult](), list[tuple[float, float]]()
        for _ in range(NUM_WARMUP + num_steps):
            called = time.monotonic()
            steps.append(trainer.step_microbatches(microbatches))
            calls.append((called, time.monotonic()))
        if shows_parts:
            for name, planned, real in parts(next(client.timelines(deployment.id)), calls[NUM_WARMUP:]):
                print(f"    {name}: {planned * 1e3:.2f}, {real * 1e3:.2f}", flush=True)
    client.stop(deployment.id)
    steps = steps[NUM_WARMUP:]
    return (
        Times(seconds=plan.step_seconds, bubble_share=idle_share(plan, predict(plan))),
        Times(seconds=_median(steps, "seconds"), bubble_share=_median(steps, "bubble_share")),
    )


def _median(steps: Sequence[StepResult], name: str) -> float:
    return statistics.median(getattr(step, name) for step in steps)


def _spread(errors: Sequence[float]) -> str:
    return f"median {statistics.median(errors):.1%}, p95 {float(np.percentile(errors, 95)):.1%}"


if __name__ == "__main__":
    main(*sys.argv[1:])
