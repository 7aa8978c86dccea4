"""Training steps with one stage on each device and with several, of layers that only wait; measured and planned.

    python -m benchmarks.stages_per_device [--milliseconds 12] [--microbatches 4]

Four daemons, 48 layers, profiled; each row is a plan of mode optimal for the step time under a schedule: stages, the
median step, and what the plan says. Stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

from benchmarks.waiting_layers import Layers, arguments_of, median_step, profiled_inventory, submitted, waiting_daemons
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.plan.options import OptimalMode, PlanOptions

DEVICES, LAYERS = 4, 48
SCHEDULES = (
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.ZERO_BUBBLE_V,
    PipelineSchedule.BEST,
)


def main() -> None:
    seconds, microbatches = arguments_of(__doc__)
    with waiting_daemons(DEVICES) as (cluster, client):
        graph = submitted(client, Layers(LAYERS, seconds))
        inventory = profiled_inventory(cluster, client, graph.id)
        print(f"{'schedule':<20}{'stages':>8}{'step, ms':>10}{'planned':>10}")
        for schedule in SCHEDULES:
            training = Training(schedule=schedule, microbatches=microbatches)
            options = PlanOptions(mode=OptimalMode(), objective=Objective.STEP_TIME, training=training)
            plan = client.create_plan(graph.id, options, inventory=inventory)
            measured = median_step(client, plan.id, microbatches)
            planned = plan.step_seconds or 0.0
            print(f"{schedule.value:<20}{len(plan.stages):>8}{measured * 1e3:>10.0f}{planned * 1e3:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
