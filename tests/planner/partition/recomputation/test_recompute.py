"""What stages run again: the best choice on small problems, never a worse plan, and plans of random programs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.inventory import Inventory, LinkSpeed
from planner.errors import Infeasible, OptionsError
from planner.graph.ir import Graph, TreeLeaf, TreeTuple, values_in
from planner.partition.assignment import Assignment, contiguous
from planner.partition.evaluate import evaluate, objective_value
from planner.partition.modes.optimal import optimal
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.partition.problem import PartitionProblem
from planner.partition.recomputation.cones import Cones
from planner.partition.recomputation.search import recompute
from planner.partition.request import Request
from planner.partition.score import score
from planner.plan.options import OptimalMode, PlanOptions, Routing
from planner.planning import make_plan
from tests.builders.plans import inventory_of
from tests.builders.random_graphs import random_graph
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems, trainings
from tests.random_examples import random_examples

INFERENCE = [Objective.THROUGHPUT, Objective.LATENCY, Objective.MEMORY]


@st.composite
def recomputable(draw: st.DrawFn, **more: object) -> PartitionProblem:
    drawn = draw(problems(**more))  # type: ignore[arg-type]
    pure = [draw(st.integers(0, 3)) > 0 for _ in range(drawn.num_nodes)]
    return replace(drawn, node_recomputable=np.array(pure))


def masked(*, per_byte: float = 0.1, memory_bytes: list[int] | None = None) -> PartitionProblem:
    """Node 0 makes a mask of 100 bytes from input 0 (10 bytes), which nodes 1 to 4 of a chain read."""
    given_problem = problem_of(
        compute_seconds=[[1.0, 10.0, 10.0, 10.0, 10.0]] * 2,
        reads=[[0], [1, 2], [2, 3], [2, 4], [2, 5]],
        value_bytes=[10, 1, 100, 1, 1, 1, 1],
        num_inputs=2,
        returned=(6,),
        per_byte=per_byte,
        memory_bytes=memory_bytes,
    )
    return replace(given_problem, node_recomputable=np.array([True, False, False, False, False]))


def in_two(problem: PartitionProblem) -> Assignment:
    return contiguous(problem, (0, 3, 5), (0, 1), ["", ""])


def test_a_mask_is_made_again_where_that_is_cheaper() -> None:
    problem = masked()
    before = score(problem, in_two(problem), Objective.THROUGHPUT)
    recomputed = recompute(problem, before, Objective.THROUGHPUT)
    assert recomputed.assignment.recomputed == ((), (0,))
    assert before.value == pytest.approx(21.0 + 10.1)
    # Stage 1: its two nodes, the mask, and the ten bytes that the mask is made of.
    assert [stage.load_seconds for stage in recomputed.evaluation.stages] == pytest.approx([22.1, 22.1])


def test_a_mask_is_sent_where_that_is_cheaper() -> None:
    problem = masked(per_byte=0.001)
    cut = contiguous(problem, (0, 2, 5), (0, 1), ["", ""])
    before = score(problem, cut, Objective.THROUGHPUT)
    assert recompute(problem, before, Objective.THROUGHPUT) is before


def test_what_does_not_fit_is_not_made_again() -> None:
    problem = replace(
        masked(),
        use_state=np.array([0]),
        use_node=np.array([0]),
        use_is_return=np.array([False]),
        state_bytes=np.array([500]),
    )
    before = score(problem, in_two(problem), Objective.THROUGHPUT)
    assert recompute(problem, before, Objective.THROUGHPUT).assignment.recomputed == ((), (0,))
    tight = replace(problem, device_memory_bytes=np.array([2000, 600]))
    assert recompute(tight, score(tight, in_two(tight), Objective.THROUGHPUT), Objective.THROUGHPUT).assignment == (
        before.assignment
    )


def test_the_cut_moves_where_a_mask_is_cheap_to_make_again() -> None:
    """Without recomputation everything stays on one device; with it two share the work."""
    problem = masked(per_byte=0.3)
    plain = optimal(problem, Request(mode="optimal"))
    assignment = optimal(problem, Request(mode="optimal", recompute=True))
    assert plain.num_stages == 1
    assert assignment.num_stages == 2
    assert assignment.recomputed == ((), (0,))
    assert objective_value(evaluate(problem, assignment), Objective.THROUGHPUT) < 30.0


@random_examples(40)
@given(problem=recomputable(max_nodes=7, max_devices=2), per_byte=st.sampled_from([0.05, 0.5, 3.0]))
def test_the_cheapest_cone_is_found(problem: PartitionProblem, per_byte: float) -> None:
    """Against every set of nodes that the last node's stage could run again."""
    last = problem.num_nodes - 1
    cones = Cones(problem)
    needed = [int(value) for value in problem.read_value[problem.read_node == last]]

    def seconds(nodes: tuple[int, ...]) -> float:
        read = {value for node in nodes for value in cones.reads(node)}
        received = {value for value in {*needed, *read} if cones.producer[value] not in nodes}
        sent_seconds = sum(float(problem.value_bytes[value]) * per_byte for value in received)
        return sent_seconds + float(problem.compute_seconds[0, list(nodes)].sum())

    nodes = [node for node in range(last) if cones.may_run[node]]
    every = [chosen for count in range(len(nodes) + 1) for chosen in combinations(nodes, count)]
    again = cones.best(
        needed, (), lambda value: float(problem.value_bytes[value]) * per_byte, problem.compute_seconds[0]
    )
    assert seconds(again) == pytest.approx(min(map(seconds, every)), abs=1e-6)


@pytest.mark.slow
@random_examples(10)
@given(
    problem=recomputable(max_nodes=9, max_devices=3),
    objective=st.sampled_from(INFERENCE),
    num_stages=st.sampled_from([0, 2]),
)
def test_never_worse_than_without(problem: PartitionProblem, objective: Objective, num_stages: int) -> None:
    request = Request(mode="optimal", objective=objective, num_stages=num_stages, recompute=True, effort=0.2)
    try:
        plain = optimal(problem, replace(request, recompute=False))
    except (Infeasible, OptionsError):
        return
    assignment = optimal(problem, request)
    assert assignment == optimal(problem, request)
    value = objective_value(evaluate(problem, assignment), objective)
    assert value <= objective_value(evaluate(problem, plain), objective) * (1 + 1e-9)
    assert assignment.lower_bound_seconds <= value * (1 + 1e-9)
    assert (np.array(evaluate(problem, assignment).device_peak_bytes) <= problem.device_memory_bytes).all()
    for stage, nodes in enumerate(assignment.recomputed):
        assert all(problem.node_recomputable[node] and assignment.stage_of_node[node] < stage for node in nodes)


@pytest.mark.slow
@random_examples(10)
@given(problem=recomputable(max_nodes=4, max_devices=2), objective=st.sampled_from(INFERENCE))
def test_bounds_hold_for_everything_that_could_be_run_again(problem: PartitionProblem, objective: Objective) -> None:
    request = Request(mode="optimal", objective=objective, recompute=True)
    try:
        bound = optimal(problem, request).lower_bound_seconds
    except Infeasible:
        return
    for boundary in range(1, problem.num_nodes):
        if not problem.cut_allowed[boundary] or problem.num_devices < 2:
            continue
        pure = [node for node in range(boundary) if problem.node_recomputable[node] and problem.node_group[node] < 0]
        for devices in ((0, 1), (1, 0)):
            cut = contiguous(problem, (0, boundary, problem.num_nodes), devices, ["", ""])
            for count in range(len(pure) + 1):
                for again in combinations(pure, count):
                    candidate = score(problem, replace(cut, recomputed=((), again)), objective)
                    assert bound is not None
                    assert not candidate.fits or bound <= candidate.value * (1 + 1e-9)


def without_returned_states(graph: Graph) -> Graph:
    states = {state.value_id for state in graph.states}
    outputs = tuple(one for one in graph.outputs if states.isdisjoint(values_in(one.content)))
    return replace(graph, outputs=outputs, output_tree=TreeTuple((TreeLeaf(),) * len(outputs)))


@pytest.mark.slow
@random_examples(6)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(2, 14),
    routing=st.sampled_from(Routing),
    objective=st.sampled_from(list(Objective)),
    training=st.none() | trainings,
    num_stages=st.integers(1, 3),
)
def test_plans_of_random_programs_hold(
    seed: int, num_nodes: int, routing: Routing, objective: Objective, training: Training | None, num_stages: int
) -> None:
    """make_plan verifies: what the numbers say is what the graph says."""
    graph = without_returned_states(random_graph(seed, num_nodes))
    graph = replace(graph, states=tuple(replace(state, requires_grad=training is not None) for state in graph.states))
    if (objective is Objective.STEP_TIME or training is not None) and not (training and graph.states):
        return
    inventory = Inventory(
        devices=inventory_of(3).devices, default_link=LinkSpeed(bytes_per_second=1e6, latency_seconds=1e-6)
    )
    options = PlanOptions(
        mode=OptimalMode(recompute=True, num_stages=num_stages, effort=0.2),
        routing=routing,
        objective=objective,
        training=training,
    )
    try:
        plan = make_plan(graph, "graph-id", inventory, options)
    except (Infeasible, OptionsError):
        return
    plain = make_plan(
        graph, "graph-id", inventory, replace(options, mode=OptimalMode(num_stages=num_stages, effort=0.2))
    )
    assert plan.objective_value <= plain.objective_value * (1 + 1e-9)


def test_in_training_only_what_has_no_gradient_is_run_again() -> None:
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=2)
    plain = masked()
    differentiated = np.array([False, True, True, True, True])
    problem = replace(plain, training=training, node_has_gradient=differentiated)
    before = score(problem, in_two(problem), Objective.STEP_TIME)
    assert recompute(problem, before, Objective.STEP_TIME).assignment.recomputed == ((), (0,))
    problem = replace(problem, node_has_gradient=np.ones(5, dtype=np.bool_))
    before = score(problem, in_two(problem), Objective.STEP_TIME)
    assert recompute(problem, before, Objective.STEP_TIME) is before
