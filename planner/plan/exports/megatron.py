"""Megatron-Core's --pipeline-model-parallel-layout: E embedding, t decoder layer, L loss; | between stages."""

from __future__ import annotations

from planner.errors import OptionsError
from planner.graph.ir import Graph
from planner.plan.exports.ranks import layers_of_ranks, refuse_uneven_copies
from planner.plan.plan import Plan


def megatron_layout(graph: Graph, plan: Plan, *, nearest: bool = False) -> str:
    """ "Et*3|t*4|t*3L". Of twice as many stages as --pipeline-model-parallel-size, each rank has two, and so on.

    Raises OptionsError where a cut is not between layers, or devices do not come round in the same order.
    """
    _refuse_other_turns(plan)
    refuse_uneven_copies(plan)
    stages = [_layers(count) for count in layers_of_ranks(graph, plan, nearest=nearest)]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}L"
    return "|".join(stages)


def _layers(count: int) -> str:
    return "" if count == 0 else "t" if count == 1 else f"t*{count}"


def _refuse_other_turns(plan: Plan) -> None:
    """Megatron's stage s is on rank s modulo the number of ranks."""
    devices = [stage.device_ids[0] for stage in plan.stages]
    ranks = list(dict.fromkeys(devices))
    turned = next((at for at, device in enumerate(devices) if device != ranks[at % len(ranks)]), None)
    if turned is not None or len(devices) % len(ranks):
        raise OptionsError(
            f"stages are on {', '.join(devices)}, in this order, and Megatron has them on its ranks in turn: plan with "
            f"--mode balanced, and with a schedule that has one stage on each device or interleaves them"
        )
