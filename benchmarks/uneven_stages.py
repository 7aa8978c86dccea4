"""Training steps of few microbatches over stages that are equal or not, of layers that only wait; measured and planned.

    python -m benchmarks.uneven_stages [--milliseconds 12]

Six daemons, 36 layers, four microbatches under 1F1B. A row gives the layers of each stage, the median step, and the
seconds that a plan of such stages would say, messages apart. Stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import accumulate

from benchmarks.waiting_layers import Layers, median_step, submitted, waiting_daemons
from planner.client import PlannerClient
from planner.partition.objective import PipelineSchedule, Training
from planner.partition.training.named_orders import device_orders
from planner.partition.training.step_graph import StageSeconds, TrainingStep
from planner.partition.training.step_time import step_seconds
from planner.plan.options import CutMode, PlanOptions

STAGES, MICROBATCHES = 6, 4
SIZES = ([6, 6, 6, 6, 6, 6], [7, 7, 7, 5, 5, 5], [5, 5, 5, 7, 7, 7])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, default=12.0, help="of a layer's forward pass")
    seconds = parser.parse_args().milliseconds / 1e3
    with waiting_daemons(STAGES, memory_bytes=None) as (_, client):
        graph = submitted(client, Layers(sum(SIZES[0]), seconds))
        print(f"{'layers of each stage':<24}{'step, ms':>10}{'planned':>10}")
        for sizes in SIZES:
            measured, planned = _measured(client, graph.id, sizes), _planned(sizes, seconds)
            print(f"{' '.join(map(str, sizes)):<24}{measured * 1e3:>10.0f}{planned * 1e3:>10.0f}", flush=True)


def _measured(client: PlannerClient, graph_id: str, sizes: Sequence[int]) -> float:
    cuts = tuple(f"layers.{end - 1}" for end in accumulate(sizes[:-1]))
    options = PlanOptions(mode=CutMode(module_paths=cuts), training=Training(microbatches=MICROBATCHES))
    return median_step(client, client.create_plan(graph_id, options).id, MICROBATCHES)


def _planned(sizes: Sequence[int], seconds: float) -> float:
    stages = tuple(
        StageSeconds(
            forward=size * seconds,
            backward=2 * size * seconds,
            received=0.0,
            sent=0.0,
            gradients_received=0.0,
            gradients_sent=0.0,
        )
        for size in sizes
    )
    edges = tuple((stage, stage + 1) for stage in range(len(sizes) - 1))
    copies = tuple((stage,) for stage in range(len(sizes)))
    step = TrainingStep(copies=copies, stages=stages, edges=edges, gradient_edges=edges, microbatches=MICROBATCHES)
    return step_seconds(step, device_orders(PipelineSchedule.ONE_F_ONE_B, MICROBATCHES, copies))


if __name__ == "__main__":
    main()
