"""Training steps with one stage on each device and with several, of layers that only wait; measured and planned.

    python -m benchmarks.stages_per_device [--milliseconds 12] [--microbatches 4]

Four daemons, 48 layers, profiled; each row is a plan of mode optimal for the step time under a schedule: stages, the
median step, and what the plan says. Stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.naps import MODULE, NAP
from benchmarks.uneven_stages import ROOT, Layers, median_step
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.plan.options import OptimalMode, PlanOptions, SingleMode

DEVICES, LAYERS = 4, 48
SCHEDULES = (
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.ZERO_BUBBLE_V,
    PipelineSchedule.BEST,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, default=12.0, help="of a layer's forward pass")
    parser.add_argument("--microbatches", type=int, default=4)
    arguments = parser.parse_args()
    batch = torch.export.Dim("batch", min=1, max=64)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            data_dir=Path(folder),
            memory_bytes=[1 << 30] * DEVICES,
            daemon_arguments=("--custom-operators", f"{MODULE}={NAP}"),
            environment={"PYTHONPATH": str(ROOT)},
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        module = Layers(LAYERS, arguments.milliseconds / 1e3).train()
        graph = client.submit(export(module, (torch.zeros(2, 8),), dynamic_shapes={"x": {0: batch}}))
        client.profile_graph(graph.id, device_ids=[cluster.device_id(0)], backward=True)
        # Who waits does so beside others: nothing is divided.
        devices = client.create_plan(graph.id, SingleMode()).inventory
        inventory = replace(devices, devices=tuple(replace(one, shares_cores=False) for one in devices.devices))
        print(f"{'schedule':<20}{'stages':>8}{'step, ms':>10}{'planned':>10}")
        for schedule in SCHEDULES:
            training = Training(schedule=schedule, microbatches=arguments.microbatches)
            options = PlanOptions(mode=OptimalMode(), objective=Objective.STEP_TIME, training=training)
            plan = client.create_plan(graph.id, options, inventory=inventory)
            measured = median_step(client, plan.id, arguments.microbatches)
            planned = plan.step_seconds or 0.0
            print(f"{schedule.value:<20}{len(plan.stages):>8}{measured * 1e3:>10.0f}{planned * 1e3:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
