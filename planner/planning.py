"""From a graph and an inventory to a plan: costs, problem, assignment, plan, proof. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from planner.cost.buckets import mean_costs
from planner.cost.calibration import Calibration
from planner.cost.inventory import Inventory
from planner.cost.measured import MeasuredTimes
from planner.cost.roofline import NodeCosts, node_costs
from planner.cost.shared_cores import choices_are_all, device_choices, divide_cores, workers_on_cores
from planner.errors import GraphError, Infeasible, InventoryError, OptionsError
from planner.graph.bounds import shown
from planner.graph.check import check_graph
from planner.graph.ir import Graph
from planner.partition.activations import partition_with_activations
from planner.partition.assignment import Assignment, on_devices
from planner.partition.describe import describe_node
from planner.partition.evaluate import evaluate, objective_value, with_best_order
from planner.partition.from_graph import problem_from_graph
from planner.partition.modes.single import fastest_alone
from planner.partition.next_best import NextBestCut, next_best_cuts
from planner.partition.out_of_time import OutOfTime, never
from planner.partition.problem import PartitionProblem
from planner.partition.registry import partition
from planner.partition.replacement import Replacement, moved_bytes, replacement
from planner.partition.request import request_for
from planner.plan.assignment import assignment_of, before_on
from planner.plan.build import build_plan
from planner.plan.dimensions import chosen_symbol_values, settings_of
from planner.plan.explain import Alone, CutAlternative, explain
from planner.plan.options import OptimalMode, PlanOptions, Routing, SingleMode
from planner.plan.plan import Plan
from planner.plan.verify import verify_plan
from planner.plan.written_states import why_not_copied, written_states

MAX_MICROBATCHES_IN_FLIGHT = 1 << 16
# Searches keep tables of devices x nodes: of 1,024 devices and 65,000 nodes, several of half a GB each.
MAX_DEVICES_TIMES_NODES = 1 << 26


__all__ = ["chosen_symbol_values", "explain_plan", "make_plan", "make_replacement", "partition_problem"]


def make_plan(
    graph: Graph,
    graph_id: str,
    inventory: Inventory,
    options: PlanOptions,
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
    out_of_time: OutOfTime = never,
) -> Plan:
    """`measured` are times of this graph's nodes, `calibrations` rates of device kinds; both come before the roofline.

    Of several that would do, the first counts, here and everywhere: the newest first is what the server hands over.
    `calibrations` have to hold those that `options.rates_from_profiles` names. `out_of_time` ends the searches of mode
    optimal with the best so far.

    Raises GraphError, InventoryError or OptionsError for what cannot be planned, Infeasible if no plan exists.
    """
    _check(graph, inventory)
    request = request_for(options.mode, options.objective, options.saturate_host, out_of_time)
    question = _Question(
        graph=graph, inventory=inventory, options=options, measured=measured, calibrations=calibrations
    )

    def place(problem: PartitionProblem) -> Assignment:
        return partition_with_activations(problem, options.objective, lambda problem: partition(problem, request))

    if divide_cores(inventory.devices):
        assignment = _best_share_of_cores(question, place)
        return _verified(question, graph_id, question.numbers(_used(assignment)), assignment)
    numbers = question.numbers()
    return _verified(question, graph_id, numbers, place(numbers.problem))


def make_replacement(
    graph: Graph,
    graph_id: str,
    inventory: Inventory,
    options: PlanOptions,
    replaced: Plan,
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
) -> tuple[Plan, Replacement]:
    """A plan in the place of `replaced` on other devices, `planner.partition.replacement` says which. Raises as above.

    `options` are what was asked for: the objective stays, and of `fixed` what names devices that are there. The mode is
    optimal, with as many stages as help, since others may want devices or a number of stages that is not there. Where
    stages might have copies, they may again.
    """
    _check(graph, inventory)
    options, mode = _on_other_devices(options, inventory)
    question = _Question(
        graph=graph, inventory=inventory, options=options, measured=measured, calibrations=calibrations
    )
    numbers = question.numbers()
    problem = numbers.problem
    writes = bool(written_states(graph, options))
    before = replace(before_on(inventory, replaced), may_copy=(mode.replicate or options.saturate_host) and not writes)
    request = request_for(replace(mode, replicate=False), options.objective)
    outcomes: list[Replacement] = []

    def place(problem: PartitionProblem) -> Assignment:
        outcomes.append(replacement(problem, request, before))
        return outcomes[-1].assignment

    assignment = partition_with_activations(problem, options.objective, place)
    outcome = replace(outcomes[-1], assignment=assignment, moved_bytes=moved_bytes(problem, before, assignment))
    if divide_cores(inventory.devices):
        numbers, assignment = question.numbers(_used(assignment)), replace(assignment, lower_bound_seconds=None)
    return _verified(question, graph_id, numbers, assignment), outcome


def _check(graph: Graph, inventory: Inventory) -> None:
    if not graph.nodes:
        raise GraphError(f"graph {graph.name!r} has no nodes; there is nothing to plan")
    if not inventory.devices:
        raise InventoryError("the inventory has no devices; register a stage daemon or give devices in the request")
    if len(inventory.devices) * len(graph.nodes) > MAX_DEVICES_TIMES_NODES:
        most = MAX_DEVICES_TIMES_NODES // len(graph.nodes)
        raise InventoryError(
            f"the inventory has {len(inventory.devices):,} devices; for a graph of {len(graph.nodes):,} nodes a plan "
            f"may choose among {most:,}: give an inventory of fewer"
        )
    check_graph(graph)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers:
    costs: NodeCosts
    problem: PartitionProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked, before it is numbers."""

    graph: Graph
    inventory: Inventory
    options: PlanOptions
    measured: Sequence[MeasuredTimes]
    calibrations: Sequence[Calibration]

    def numbers(self, used: Collection[int] | None = None) -> _Numbers:
        """`used`: as in plan_costs."""
        costs = plan_costs(self.graph, self.inventory, self.options, self.measured, self.calibrations, used)
        return _Numbers(costs=costs, problem=_problem(self.graph, costs, self.inventory, self.options))

    def over(self, devices: Sequence[int]) -> _Question:
        ids = {device.id for device in self.inventory.devices}
        left_out = ids - {self.inventory.devices[at].id for at in devices}
        return replace(self, inventory=self.inventory.without(left_out)) if left_out else self


def _verified(question: _Question, graph_id: str, numbers: _Numbers, assignment: Assignment) -> Plan:
    graph, inventory, options = question.graph, question.inventory, question.options
    assignment = with_best_order(numbers.problem, assignment)
    evaluation = evaluate(numbers.problem, assignment)
    plan = build_plan(graph, graph_id, inventory, options, assignment, evaluation, numbers.costs.sources)
    if why := why_not_copied(plan, graph):
        raise OptionsError(why)
    is_measured = options.training is not None and any(numbers.costs.saved)
    verify_plan(plan, graph, numbers.costs.saved_by_nodes(graph) if is_measured else ())
    return plan


def _used(assignment: Assignment) -> frozenset[int]:
    return frozenset(device for devices in assignment.devices_of_stage for device in devices)


def _best_share_of_cores(question: _Question, place: Callable[[PartitionProblem], Assignment]) -> Assignment:
    """Of what `place` finds for each number of workers on the hosts whose cores they divide.

    Modes whose stages are fixed by their definition are asked once, with all devices at work.
    """
    inventory, options = question.inventory, question.options
    fixed = frozenset(device_id for _, device_id in options.fixed)
    searches = options.mode.chooses_stages or isinstance(options.mode, SingleMode)
    least = request_for(options.mode).num_stages
    choices = device_choices(inventory, fixed, least) if searches else [tuple(range(len(inventory.devices)))]
    best: Assignment | None = None
    least_value, bounds = math.inf, list[float | None]()
    for devices in choices:
        part = question.over(devices)
        try:
            assignment = place(part.numbers().problem)
        except Infeasible:
            if best is None and len(devices) == len(inventory.devices):
                raise
            continue
        assignment = on_devices(assignment, devices)
        bounds.append(assignment.lower_bound_seconds)
        problem = question.numbers(_used(assignment)).problem
        value = objective_value(evaluate(problem, assignment), options.objective)
        if best is None or value < least_value:
            best, least_value = assignment, value
    assert best is not None, "all devices are the last choice"
    proven_bounds = [bound for bound in bounds if bound is not None]
    proven = searches and choices_are_all(inventory, fixed) and len(proven_bounds) == len(bounds)
    return replace(best, lower_bound_seconds=min(proven_bounds) if proven else None)


def _on_other_devices(options: PlanOptions, inventory: Inventory) -> tuple[PlanOptions, OptimalMode]:
    device_ids = {device.id for device in inventory.devices}
    mode = replace(options.mode if isinstance(options.mode, OptimalMode) else OptimalMode(), num_stages=0)
    fixed = tuple((path, device_id) for path, device_id in options.fixed if device_id in device_ids)
    return replace(options, mode=mode, fixed=fixed), mode


def plan_costs(
    graph: Graph,
    inventory: Inventory,
    options: PlanOptions,
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
    used: Collection[int] | None = None,
) -> NodeCosts:
    """Over all shape buckets: the weighted mean of the seconds, the largest of the bytes.

    `used` are positions of the devices whose workers divide the cores of their hosts; None: all.
    """
    named = options.rates_from_profiles
    missing = set(named) - {one.profile_id for one in calibrations}
    if missing:
        raise OptionsError(
            f"options.rates_from_profiles names {min(missing)[:80]!r}, whose rates were not handed over",
            field="options.rates_from_profiles",
        )
    devices, workers = inventory.devices, workers_on_cores(inventory.devices, used)
    return mean_costs(
        [
            (node_costs(graph, devices, setting.symbol_values, measured, calibrations, named, workers), setting.weight)
            for setting in settings_of(graph, options)
        ]
    )


def partition_problem(
    graph: Graph,
    inventory: Inventory,
    options: PlanOptions,
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
    used: Collection[int] | None = None,
) -> PartitionProblem:
    """The question in numbers, as every mode sees it. `used`: as in plan_costs."""
    return _problem(graph, plan_costs(graph, inventory, options, measured, calibrations, used), inventory, options)


def _check_trainable(graph: Graph) -> None:
    if graph.custom_backwards:
        raise OptionsError(
            f"graph {shown(graph.name)} cannot be trained: what {shown(graph.custom_backwards[0])} does to gradients "
            "is not in it, as it was captured in evaluation; export the module in training, as train() leaves it",
            function=graph.custom_backwards[0][:200],
        )


def _problem(graph: Graph, costs: NodeCosts, inventory: Inventory, options: PlanOptions) -> PartitionProblem:
    if options.training is not None:
        _check_trainable(graph)
    return problem_from_graph(
        graph,
        costs,
        inventory,
        relay=options.routing is Routing.RELAY,
        microbatches_in_flight=_microbatches_in_flight(options),
        training=options.training,
        fixed=options.fixed,
        together=options.together,
        recompute=request_for(options.mode).recompute,
    )


def explain_plan(
    graph: Graph,
    plan: Plan,
    measured: Sequence[MeasuredTimes] = (),
    calibrations: Sequence[Calibration] = (),
) -> tuple[str, ...]:
    """Lines to print: `planner.plan.explain` with what each cut's next best place would cost.

    `measured` and `calibrations` are those that the plan was made with, which its `cost_sources` name.
    """
    assignment, objective = assignment_of(plan), plan.options.objective
    problem = partition_problem(graph, plan.inventory, plan.options, measured, calibrations, _used(assignment))
    value = objective_value(evaluate(problem, assignment), objective)
    cuts = next_best_cuts(problem, assignment, lambda evaluation: objective_value(evaluation, objective))
    # With all cores of its host.
    alone = partition_problem(graph, plan.inventory, plan.options, measured, calibrations, ())
    return explain(plan, [_alternative(problem, cut, value) for cut in cuts], _alone(alone))


def _alone(problem: PartitionProblem) -> Alone | None:
    fastest = fastest_alone(problem) if problem.training else None
    if fastest is None:
        return None
    return Alone(device_id=problem.labels.devices[fastest.device], step_seconds=fastest.step_seconds)


def _alternative(problem: PartitionProblem, cut: NextBestCut, value: float) -> CutAlternative:
    last = "" if cut.position is None else describe_node(problem, cut.position - 1)
    change = cut.value / value - 1 if value and cut.position is not None else 0.0
    return CutAlternative(cut_index=cut.cut_index, after=last, value=cut.value, change=change)


def _microbatches_in_flight(options: PlanOptions) -> int:
    num_microbatches = options.microbatches_in_flight
    if not 0 <= num_microbatches <= MAX_MICROBATCHES_IN_FLIGHT:
        raise OptionsError(
            f"microbatches_in_flight is {num_microbatches}, needs 0 (the default) to {MAX_MICROBATCHES_IN_FLIGHT}"
        )
    return options.in_flight
