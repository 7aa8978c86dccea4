"""States that a stage's runs write: a stream is one sequence, which copies of the stage would each see a part of."""

from __future__ import annotations

from planner.errors import few_of
from planner.graph.ir import Graph
from planner.plan.options import PlanOptions
from planner.plan.plan import Plan


def written_states(graph: Graph, options: PlanOptions) -> list[str]:
    """That each batch of a stream finds as the one before left them. A training's evaluations write none."""
    return [] if options.training is not None else [state.name for state in graph.states if state.mutated]


def why_not_copied(plan: Plan, graph: Graph) -> str:
    """Why a stream through the plan would not give what the module gives; empty where it does.

    In training each copy has buffers of its own, as in data parallel training.
    """
    written = {*written_states(graph, plan.options)}
    for stage in plan.stages:
        names = [repr(name) for name in stage.states if name in written]
        if len(stage.device_ids) > 1 and names:
            return (
                f"stage {stage.index} has copies on {', '.join(stage.device_ids)} and writes {few_of(names, 1)} when "
                "it runs: each copy would know only the microbatches that it ran. Plan without replicate and "
                "saturate_host, or let the module take what it writes as an input and return it"
            )
    return ""
