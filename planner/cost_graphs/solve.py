"""Which search answers which file: one function for each format, all with the same limits and the same answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.cost.inventory import Inventory
from planner.cost_graphs.cost_graph import placement_document, read_cost_graph
from planner.cost_graphs.hybrid.limit_search import best_hybrid
from planner.cost_graphs.limits import Limits
from planner.cost_graphs.placement.contiguous import MAX_PAIRS, best_contiguous
from planner.cost_graphs.placement.free import AS_GOOD
from planner.cost_graphs.single_pass.latency import best_latency
from planner.cost_graphs.training_profile import plan_document, read_training_profile
from planner.cost_graphs.two_searches import place_by_two
from planner.graph.ir import Graph
from planner.partition.objective import Objective
from planner.plan.options import OptimalMode, PlanOptions
from planner.plan.plan import Plan
from planner.planning import make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`document` is what to write: the device of each node, or the stages of a training profile's pipeline.

    `ran_out_of_time`: the search was told to end, or to look no further, by the clock.
    """

    value: float
    lower_bound: float
    document: Mapping[str, Any]
    ran_out_of_time: bool

    @property
    def gap(self) -> float:
        """How far the value may be above the optimum, as a share of the value."""
        return max(0.0, 1.0 - self.lower_bound / self.value) if self.value else 0.0

    @property
    def is_proven(self) -> bool:
        """To what the integer programmes' tolerances leave open."""
        return self.gap <= AS_GOOD

    @property
    def is_cut(self) -> bool:
        """A quicker machine may come to another value. Otherwise the answer is the same on any machine."""
        return self.ran_out_of_time and not self.is_proven


def solve_training_profile(
    document: Mapping[str, Any],
    limits: Limits,
    *,
    num_devices: int | None = None,
    memory_bytes: float | None = None,
    bandwidth: float | None = None,
) -> Answer:
    """In Piper's format; what is given besides counts instead of what the file says. Has no steps to scale."""
    profile = read_training_profile(document, num_devices=num_devices, memory_bytes=memory_bytes, bandwidth=bandwidth)
    plan = best_hybrid(profile.problem, limits.out_of_time)
    return _answer(plan.seconds_per_sample, plan.lower_bound_seconds, plan_document(profile, plan), limits)


def solve_cost_graph(
    document: Mapping[str, object], objective: Objective, limits: Limits, *, contiguous: bool
) -> Answer:
    """In the format of Tarnawski et al.; for throughput or latency."""
    graph = read_cost_graph(document)
    problem, out_of_time = graph.problem, limits.out_of_time
    if objective is Objective.LATENCY:
        effort = max(1, round(limits.effort))
        placement = best_latency(problem, contiguous=contiguous, effort=effort, out_of_time=out_of_time)
    elif contiguous:
        pairs = int(MAX_PAIRS * limits.effort)
        placement = best_contiguous(problem, max_pairs=pairs, out_of_time=out_of_time)
    else:
        placement = place_by_two(problem, limits)
    document = placement_document(graph, placement)
    return _answer(placement.value_seconds, placement.lower_bound_seconds, document, limits)


def solve_instance(
    graph: Graph,
    inventory: Inventory,
    node_ids: Sequence[str],
    objective: Objective,
    limits: Limits,
    *,
    contiguous: bool,
) -> Answer:
    """A graph with any devices and links, by mode `optimal`. `node_ids` are the file's, by node index."""
    options = PlanOptions(mode=OptimalMode(free=not contiguous, effort=limits.effort), objective=objective)
    plan = make_plan(graph, "", inventory, options, out_of_time=limits.out_of_time)
    value = plan.latency_seconds if objective is Objective.LATENCY else plan.bottleneck_seconds
    return _answer(value, plan.lower_bound_seconds or 0.0, _device_by_node(plan, node_ids), limits)


def _answer(value: float, lower_bound: float, document: Mapping[str, Any], limits: Limits) -> Answer:
    return Answer(value=value, lower_bound=lower_bound, document=document, ran_out_of_time=limits.has_cut)


def _device_by_node(plan: Plan, node_ids: Sequence[str]) -> dict[str, str]:
    return {
        node_ids[index]: stage.device_ids[0]
        for stage in plan.stages
        for start, end in stage.node_ranges
        for index in range(start, end)
    }
