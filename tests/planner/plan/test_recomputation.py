"""Stages that run nodes of earlier stages again give what the whole program gives; other such plans are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanInvariantError
from planner.graph.check import check_graph
from planner.graph.ir import Graph, Node, Operator, OperatorKind, StateKind, ValueReference
from planner.graph.recomputable import recomputable_nodes
from planner.graph.rename import renamed
from planner.partition.objective import Training
from planner.plan.assignment import assignment_of
from planner.plan.expansion import expanded_plan
from planner.plan.explain import explain
from planner.plan.invariants.recomputed import check_same_program
from planner.plan.node_ranges import ranges_of
from planner.plan.options import Routing
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.plan.verify import verify_plan
from planner.schedule.check import check_schedule
from planner.schedule.inference import inference_schedule
from tests.builders.plans import plan_of
from tests.builders.random_graphs import ADD_IN_PLACE, COND, MULTIPLY, VIEW, GraphWriter, random_graph, random_stages
from tests.planner.plan.interpreter import Program, outputs_of, random_inputs
from tests.planner.plan.lanes import run_lanes
from tests.random_examples import random_examples

MICROBATCHES = 2
RANDOM = Operator(kind=OperatorKind.ATEN, name="aten::rand_like", overload="default", random=True)
EMPTY = Operator(kind=OperatorKind.ATEN, name="aten::empty_like", overload="default")


def some_recomputed(graph: Graph, stages: tuple[int, ...], seed: int) -> list[list[int]]:
    """Each stage runs some of the earlier stages' nodes again, whether it needs them or not."""
    choice = random.Random(seed)
    share = choice.random()
    pure = recomputable_nodes(graph)
    return [
        [node for node, own in enumerate(stages) if own < stage and pure[node] and choice.random() < share]
        for stage in range(max(stages) + 1)
    ]


@pytest.mark.slow
@random_examples(100)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 40),
    num_stages=st.integers(2, 6),
    routing=st.sampled_from(Routing),
)
def test_numbers_are_those_of_the_whole_program(seed: int, num_nodes: int, num_stages: int, routing: Routing) -> None:
    graph = random_graph(seed, num_nodes)
    stages = random_stages(graph, seed, num_stages)
    plan = plan_of(graph, stages, routing, recomputed=some_recomputed(graph, stages, seed))
    verify_plan(plan, graph)
    check_schedule(inference_schedule(plan), plan)
    value_ids = {value.id for value in graph.values}
    for stage in plan.stages:
        part = stage_graph(graph, plan, stage.index)
        check_graph(part)
        assert value_ids.issuperset(stage.outputs), "what leaves a stage has the id that the whole program gives it"
    program = Program(graph)
    whole = [outputs_of(graph, program.run(random_inputs(graph, number))) for number in range(MICROBATCHES)]
    assert run_lanes(graph, plan, inference_schedule(plan), MICROBATCHES) == whole


def masked(*, extra: Operator | None = None) -> GraphWriter:
    """Nodes 0 and 1 make a mask of the second input, by way of `extra`; nodes 2 and 3 use it, with a weight each."""
    writer = GraphWriter()
    data, seen = writer.input(), writer.input()
    first = writer.tensor()
    writer.call(extra or MULTIPLY, ValueReference(seen), outputs=[first])
    mask = writer.multiply(first, first)
    hidden = writer.multiply(data, mask, writer.state())
    writer.multiply(hidden, mask, writer.state())
    return writer


def graph_of(writer: GraphWriter) -> Graph:
    return writer.graph(writer.nodes[-1].outputs[0])


def planned(graph: Graph, recomputed: tuple[int, ...], routing: Routing = Routing.DIRECT) -> Plan:
    return plan_of(graph, (0, 0, 0, 1), routing, recomputed=[(), recomputed])


def sent(plan: Plan) -> list[tuple[int, ...]]:
    return [edge.value_ids for edge in plan.edges]


@pytest.mark.parametrize("routing", Routing)
def test_a_mask_is_made_again_from_the_input_that_it_was_made_of(routing: Routing) -> None:
    graph = graph_of(masked())
    data, seen, first, mask, hidden = 1, 2, 3, 4, 6
    assert recomputable_nodes(graph) == (True, True, False, False)
    assert sent(planned(graph, ())) == [(mask, hidden)]
    plan = planned(graph, (0, 1), routing)
    verify_plan(plan, graph)
    assert sent(plan) == [(seen, hidden)]
    assert sent(planned(graph, (1,), routing)) == [(first, hidden)]
    second = stage_graph(graph, plan, 1)
    assert [node.operator for node in second.nodes] == [MULTIPLY] * 3
    assert [node.name for node in second.nodes] == ["node_0", "node_1", "node_3"]
    assert not {first, mask, data} & {value.id for value in second.values}
    assert plan.stages[1].recomputed_ranges == ((0, 2),)
    assert plan.stages[1].compute_seconds == sum(planned(graph, ()).stages[at].compute_seconds for at in (0, 1)) - (
        plan_of(graph, (0, 0, 1, 1)).stages[1].compute_seconds - planned(graph, ()).stages[1].compute_seconds
    )
    assert assignment_of(plan).recomputed == ((), (0, 1))


def test_a_buffer_that_is_read_again_is_held_twice() -> None:
    writer = GraphWriter()
    given_tensor, frequencies = writer.input(), writer.state()
    writer.states[0] = replace(writer.states[0], kind=StateKind.BUFFER)
    table = writer.multiply(frequencies)
    hidden = writer.multiply(given_tensor, table)
    graph = writer.graph(writer.multiply(hidden, table))
    plan = plan_of(graph, (0, 0, 1), recomputed=[(), (0,)])
    verify_plan(plan, graph)
    assert sent(plan) == [(hidden,)]
    assert [group.members for group in plan.tie_groups] == [(("block.0.weight", 0), ("block.0.weight", 1))]
    assert plan.stages[1].memory.state_bytes == 16


def refused(plan: Plan, graph: Graph) -> str:
    with pytest.raises(PlanInvariantError) as error:
        verify_plan(plan, graph)
    assert error.value.metadata["invariant"] == "recomputed"
    return str(error.value)


@pytest.mark.parametrize("extra", [RANDOM, EMPTY, ADD_IN_PLACE, COND])
def test_a_node_that_may_give_something_else_is_refused(extra: Operator) -> None:
    graph = graph_of(masked(extra=extra))
    assert not recomputable_nodes(graph)[0]
    verify_plan(planned(graph, (1,) if extra is not ADD_IN_PLACE else ()), graph)
    refused(planned(graph, (0, 1)), graph)


def test_a_node_that_reads_a_parameter_is_refused() -> None:
    graph = graph_of(masked())
    assert "parameter 'block.0.weight'" in refused(planned(graph, (2,)), graph)


def test_a_node_beside_a_write_is_refused() -> None:
    writer = masked()
    writer.add_in_place(writer.nodes[0].outputs[0], writer.nodes[1].outputs[0])
    graph = writer.graph(writer.nodes[-1].outputs[0], writer.nodes[3].outputs[0])
    plan = plan_of(graph, (0,) * 5)
    verify_plan(plan, graph)
    assert recomputable_nodes(graph) == (False,) * 5


def test_a_size_that_is_known_only_at_run_time_is_not_made_again() -> None:
    graph = graph_of(masked())
    unbacked = replace(graph, symbols=(replace(graph.symbols[0], unbacked=True),))
    assert not any(recomputable_nodes(unbacked))
    assert "size" in refused(planned(unbacked, (0, 1)), unbacked)


@pytest.mark.parametrize(
    ("stage", "ranges", "says"),
    [
        (0, ((3, 4),), "not earlier"),
        (1, ((3, 4),), "not earlier"),
        (1, ((1, 2), (0, 1)), "out of order"),
        (1, ((0, 9),), "out of order"),
        (1, ((1, 1),), "out of order"),
    ],
)
def test_ranges_have_to_be_of_earlier_stages_and_in_order(
    stage: int, ranges: tuple[tuple[int, int], ...], says: str
) -> None:
    graph = graph_of(masked())
    plan = planned(graph, ())
    stages = list(plan.stages)
    stages[stage] = replace(stages[stage], recomputed_ranges=ranges)
    assert says in refused(replace(plan, stages=tuple(stages)), graph)


def test_a_plan_that_forgets_what_it_runs_again_is_refused() -> None:
    graph = graph_of(masked())
    plan = planned(graph, (0, 1))
    forgetful = replace(plan, stages=tuple(replace(stage, recomputed_ranges=()) for stage in plan.stages))
    with pytest.raises(PlanInvariantError):
        verify_plan(forgetful, graph)
    other = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], recomputed_ranges=ranges_of((1,)))))
    with pytest.raises(PlanInvariantError):
        verify_plan(other, graph)


CHANGES: dict[str, tuple[str, Callable[[Graph], Graph]]] = {
    "a copy that does not run": ("node 0 is another one in stage 1", lambda graph: without_node(graph, 1)),
    "the last node does not run": ("node 3 is lost in stage 1", lambda graph: without_node(graph, 5)),
    "a node too many": ("does more than the graph", lambda graph: replace(graph, nodes=graph.nodes + graph.nodes[-1:])),
    "another call": (
        "node 0 is another one in stage 1",
        lambda graph: with_node(graph, 1, replace(graph.nodes[1], operator=VIEW)),
    ),
    "the original reads a copy": (
        "node 2 is another one in stage 0",
        lambda graph: with_node(graph, 4, renamed(graph.nodes[4], {4: graph.nodes[3].outputs[0]})),
    ),
    "other outputs": ("does more than the graph", lambda graph: replace(graph, outputs=())),
    "other states": ("does more than the graph", lambda graph: replace(graph, states=graph.states[:1])),
}


def with_node(graph: Graph, at: int, node: Node) -> Graph:
    return replace(graph, nodes=(*graph.nodes[:at], node, *graph.nodes[at + 1 :]))


def without_node(graph: Graph, at: int) -> Graph:
    return replace(graph, nodes=(*graph.nodes[:at], *graph.nodes[at + 1 :]))


@pytest.mark.parametrize("name", CHANGES)
def test_what_the_stages_run_is_the_program_and_its_copies(name: str) -> None:
    """Written out: nodes 0, its copy, 1, its copy, 2 and 3."""
    message, change = CHANGES[name]
    graph = graph_of(masked())
    plan = planned(graph, (0, 1))
    expanded, _, _ = expanded_plan(graph, plan)
    check_same_program(plan, graph, expanded)
    with pytest.raises(PlanInvariantError, match=message):
        check_same_program(plan, graph, change(expanded))


def test_a_node_with_a_gradient_is_not_run_again() -> None:
    writer = GraphWriter()
    trained = writer.state()
    writer.states[0] = replace(writer.states[0], kind=StateKind.BUFFER, requires_grad=True)
    product = writer.multiply(trained)
    again = writer.multiply(product)
    graph = writer.graph(writer.multiply(again, writer.input()))
    plan = plan_of(graph, (0, 0, 1))
    plan = replace(plan, options=replace(plan.options, training=Training()))
    stages = (plan.stages[0], replace(plan.stages[1], recomputed_ranges=((1, 2),)))
    assert "has a gradient" in refused(replace(plan, stages=stages), graph)


def test_people_are_told_what_runs_again() -> None:
    plan = planned(graph_of(masked()), (0, 1))
    assert "  runs 2 nodes of earlier stages again: 0 to 1" in explain(plan)
    assert not any("again" in line for line in explain(planned(graph_of(masked()), ())))
