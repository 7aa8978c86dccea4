"""Training steps of branches side by side, of layers that only wait: by segments of the program, and by moved bundles.

    python -m benchmarks.branched_steps [--milliseconds 12] [--microbatches 4]

Six daemons; rounds of four branches of four layers each, behind a layer that all of them read and before one that adds
them up; profiled. A row is a plan: of mode balanced, which cuts the program's order, or of mode optimal for the step
time under 1F1B, whose stages may stand side by side; its stages and how many of them are in turn, the median step, and
what the plan says. Stages wait, so that two cores are enough for all of them.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.waiting_layers import Layer, arguments_of, median_step, profiled_inventory, submitted, waiting_daemons
from planner.partition.objective import Objective, Training
from planner.plan.options import BalancedMode, OptimalMode, PlanOptions
from planner.plan.plan import Plan

DEVICES, ROUNDS, BRANCHES, DEPTH = 6, 2, 4, 4


def main() -> None:
    seconds, microbatches = arguments_of(__doc__)
    with waiting_daemons(DEVICES) as (cluster, client):
        graph = submitted(client, Branched(seconds))
        inventory = profiled_inventory(cluster, client, graph.id)
        training = Training(microbatches=microbatches)
        print(f"{'mode':<10}{'stages':>8}{'in turn':>9}{'step, ms':>10}{'planned':>10}")
        modes = {"balanced": (BalancedMode(), Objective.THROUGHPUT), "optimal": (OptimalMode(), Objective.STEP_TIME)}
        for name, (mode, objective) in modes.items():
            options = PlanOptions(mode=mode, objective=objective, training=training)
            plan = client.create_plan(graph.id, options, inventory=inventory)
            measured = median_step(client, plan.id, microbatches)
            print(
                f"{name:<10}{len(plan.stages):>8}{in_turn(plan):>9}{measured * 1e3:>10.0f}"
                f"{(plan.step_seconds or 0.0) * 1e3:>10.0f}",
                flush=True,
            )


class Branched(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.before = nn.ModuleList(Layer(seconds) for _ in range(ROUNDS))
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Sequential(*(Layer(seconds) for _ in range(DEPTH))) for _ in range(BRANCHES))
            for _ in range(ROUNDS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for before, branches in zip(self.before, self.branches, strict=True):
            x = before(x)
            x = torch.stack([branch(x) for branch in branches]).sum(0)
        return x.mean()


def in_turn(plan: Plan) -> int:
    """How many stages wait for one another, at most."""
    depth = [1] * len(plan.stages)
    for edge in sorted(plan.edges, key=lambda edge: edge.target_stage):
        depth[edge.target_stage] = max(depth[edge.target_stage], depth[edge.source_stage] + 1)
    return max(depth)


if __name__ == "__main__":
    main()
