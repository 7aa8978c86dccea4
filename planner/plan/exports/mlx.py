"""mlx-lm's pipeline: how many layers each rank has, the last layers on rank 0."""

from __future__ import annotations

from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_copies, refuse_shared_devices
from planner.plan.plan import Plan


def mlx_split(graph: Graph, plan: Plan, *, nearest: bool = False) -> list[int]:
    """[40, 24]: `model.model.pipeline(group, split)` since mlx-lm 0.32; the plan's first stage is the last rank.

    Raises OptionsError where a cut is not between layers, or a stage runs none.
    """
    refuse_shared_devices(plan)
    refuse_copies(plan)
    return list(reversed(layers_of_ranks(graph, plan, nearest=nearest, empty_first=False, empty_last=False)))
