"""States that a stage's runs write, where the stage has copies: each copy would see only its part of a stream."""

from __future__ import annotations

from planner.errors import few_of
from planner.graph.ir import Graph
from planner.plan.plan import Plan


def why_not_copied(plan: Plan, graph: Graph) -> str:
    """Why a stream through the plan would not give what the module gives; empty where it does.

    In training each copy has buffers of its own, as in data parallel training.
    """
    written = {state.name for state in graph.states if state.mutated}
    for stage in plan.stages:
        names = [repr(name) for name in stage.states if name in written]
        if plan.options.training is None and len(stage.device_ids) > 1 and names:
            return (
                f"stage {stage.index} has copies on {', '.join(stage.device_ids)} and writes {few_of(names, 1)} when "
                "it runs: each copy would know only the microbatches that it ran. Plan without replicate and "
                "saturate_host, or let the module take what it writes as an input and return it"
            )
    return ""
