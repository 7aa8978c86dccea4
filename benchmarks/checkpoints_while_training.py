"""What a checkpoint costs the steps that go on while it is written: windows with one and without, in turn, in one run.

    python -m benchmarks.checkpoints_while_training [windows] [steps in a window]

The stages of `benchmarks.training_peers`, trained with AdamW on a daemon each; in every other window a checkpoint is
asked for before the first step. "Held" is how long `save` keeps the caller.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.pipeline_peers import MEMORY_BYTES
from benchmarks.training_peers import MICROBATCHES, NUM_STAGES, SHAPE, Both, batch
from planner.client import export
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import CutMode, PlanOptions

DEFAULT_WINDOWS = 6
# At half a second a step a checkpoint every ten seconds: ten to a hundred times more often than trainings write one.
DEFAULT_STEPS = 20


def main(num_windows: int = DEFAULT_WINDOWS, num_steps: int = DEFAULT_STEPS) -> None:
    torch.set_num_threads(1)
    module, (whole, targets) = Both(), batch()
    training = Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=MICROBATCHES)
    step_seconds: dict[bool, list[float]] = {False: [], True: []}
    first_seconds: dict[bool, list[float]] = {False: [], True: []}
    held_seconds: list[float] = []
    written_seconds: list[float] = []
    with one_thread_daemons(NUM_STAGES, MEMORY_BYTES) as (_, client):
        graph = client.submit(export(module, (whole[: SHAPE.rows], targets[: SHAPE.rows])))
        options = PlanOptions(mode=CutMode(module_paths=("first",)), training=training)
        deployment = client.deploy(client.create_plan(graph.id, options).id)
        with client.train(deployment.id, "adamw:lr=1e-4") as trainer:
            for _ in range(3):
                trainer.step(whole, targets)
            for window in range(2 * num_windows):
                saves = window % 2 == 1
                began = time.monotonic()
                saving = trainer.save("bench", keep=1) if saves else None
                if saving is not None:
                    held_seconds.append(time.monotonic() - began)
                    saving.add_done_callback(lambda _, began=began: written_seconds.append(time.monotonic() - began))
                for step in range(num_steps):
                    trainer.step(whole, targets)
                    if step == 0:
                        first_seconds[saves].append(time.monotonic() - began)
                step_seconds[saves].append((time.monotonic() - began) / num_steps)
                if saving is not None:
                    size_bytes = saving.result().size_bytes
        client.stop(deployment.id)
    without, with_one = statistics.median(step_seconds[False]), statistics.median(step_seconds[True])
    print(f"a checkpoint of {size_bytes / 2**20:.0f} MiB, written in {statistics.median(written_seconds):.2f} s")
    print(f"held {statistics.median(held_seconds) * 1e3:.1f} ms, a step takes {without * 1e3:.0f} ms")
    first = statistics.median(first_seconds[True]) / statistics.median(first_seconds[False])
    print(f"the first step with its save: {first:.2f} of one without")
    print(f"a step in a window of {num_steps} with a checkpoint: {with_one / without:.3f} of one without")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
