"""A split program gives what the whole one gives: by either routing, in the order of the schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanInvariantError
from planner.graph.check import check_graph
from planner.graph.ir import (
    ArgumentList,
    Graph,
    SubgraphReference,
    TreeDict,
    TreeLeaf,
    TreeTuple,
    ValueKind,
    ValueReference,
)
from planner.plan.options import Routing
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.plan.verify import verify_plan
from planner.schedule.check import check_schedule
from planner.schedule.inference import inference_schedule
from tests.builders.plans import plan_of
from tests.builders.random_graphs import BATCH, COND, MULTIPLY, SIZE, VIEW, GraphWriter, random_graph, random_stages
from tests.planner.plan.interpreter import Program, outputs_of, random_inputs
from tests.planner.plan.lanes import run_lanes
from tests.random_examples import random_examples

MICROBATCHES = 3


def whole_outputs(graph: Graph) -> list[list[int]]:
    program = Program(graph)
    return [outputs_of(graph, program.run(random_inputs(graph, number))) for number in range(MICROBATCHES)]


def split_outputs(graph: Graph, plan: Plan) -> list[list[int]]:
    return run_lanes(graph, plan, inference_schedule(plan), MICROBATCHES)


@pytest.mark.slow
@random_examples(100)
@given(
    seed=st.integers(0, 2**32),
    num_nodes=st.integers(1, 40),
    num_stages=st.integers(1, 8),
    routing=st.sampled_from(Routing),
)
def test_random_splits_give_what_the_whole_program_gives(
    seed: int, num_nodes: int, num_stages: int, routing: Routing
) -> None:
    graph = random_graph(seed, num_nodes)
    plan = plan_of(graph, random_stages(graph, seed, num_stages), routing)
    verify_plan(plan, graph)
    check_schedule(inference_schedule(plan), plan)
    for stage in plan.stages:
        check_graph(stage_graph(graph, plan, stage.index))
    assert split_outputs(graph, plan) == whole_outputs(graph)


@pytest.mark.slow
@random_examples(150)
@given(seed=st.integers(0, 2**32), num_nodes=st.integers(2, 25), num_stages=st.integers(2, 5))
def test_a_split_that_gives_other_numbers_is_refused(seed: int, num_nodes: int, num_stages: int) -> None:
    graph = random_graph(seed, num_nodes)
    plan = plan_of(graph, random_stages(graph, seed, num_stages, may_part_groups=True))
    if split_outputs(graph, plan) == whole_outputs(graph):
        return
    with pytest.raises(PlanInvariantError) as refused:
        verify_plan(plan, graph)
    assert refused.value.metadata["invariant"] in {"in_place", "mutated_state"}


@pytest.mark.parametrize("routing", Routing)
def test_an_encoder_output_reaches_every_decoder_stage(routing: Routing) -> None:
    writer = GraphWriter()
    tokens, targets = writer.input(), writer.input()
    encoded = writer.multiply(tokens, writer.state())
    decoded = targets
    for _ in range(3):
        decoded = writer.multiply(decoded, encoded, writer.state())
    graph = writer.graph(decoded, encoded)
    plan = plan_of(graph, (0, 1, 2, 3), routing)
    verify_plan(plan, graph)

    tables = [[(entry.value_id, entry.consumed, entry.bypassing) for entry in stage.liveness] for stage in plan.stages]
    assert tables[0] == [(tokens, True, False), (targets, False, True)]
    assert tables[1] == [(targets, True, False), (encoded, True, True)]
    first, second = plan.stages[1].outputs[0], plan.stages[2].outputs[0]
    assert tables[2] == [(encoded, True, True), (first, True, False)]
    assert tables[3] == [(encoded, True, True), (second, True, False)]
    pairs = [(edge.source_stage, edge.target_stage) for edge in plan.edges]
    direct = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    assert pairs == (direct if routing is Routing.DIRECT else [(0, 1), (1, 2), (2, 3)])
    assert split_outputs(graph, plan) == whole_outputs(graph)


def test_a_symbolic_int_crosses_as_a_value() -> None:
    writer = GraphWriter()
    given_tensor = writer.input()
    size = writer.scalar()
    writer.call(SIZE, ValueReference(given_tensor), 0, outputs=[size])
    product = writer.multiply(given_tensor)
    view = writer.tensor()
    writer.call(VIEW, ValueReference(product), ValueReference(size), outputs=[view])
    graph = writer.graph(view)
    plan = plan_of(graph, (0, 0, 1))
    verify_plan(plan, graph)
    second = stage_graph(graph, plan, 1)
    kinds = {value.id: value.kind for value in second.values}
    entered = [entry.content.value_id for entry in second.inputs if isinstance(entry.content, ValueReference)]
    assert entered == [size, product]
    assert kinds[size] is ValueKind.SYM_INT
    assert second.symbols == (BATCH,)
    assert plan.edges[0].size_bytes == 8 + BATCH.hint * 4 * 4


def test_a_stage_keeps_only_its_own_subgraphs_and_numbers_them_anew() -> None:
    graph = next(program for seed in range(100) if len((program := random_graph(seed, 12)).subgraphs) >= 4)
    plan = plan_of(graph, random_stages(graph, 0, 6))
    for stage in plan.stages:
        part = stage_graph(graph, plan, stage.index)
        references = {
            argument.subgraph_index: whole.subgraph_index
            for node, index in zip(part.nodes, stage.node_indexes(), strict=True)
            for argument, whole in zip(node.arguments, graph.nodes[index].arguments, strict=True)
            if isinstance(argument, SubgraphReference) and isinstance(whole, SubgraphReference)
        }
        assert sorted(references) == list(range(len(part.subgraphs)))
        assert all(part.subgraphs[new] == graph.subgraphs[old] for new, old in references.items())


def test_symbols_that_a_stage_does_not_use_are_left_out() -> None:
    writer = GraphWriter()
    weight = writer.state()
    constant = writer.state()
    writer.call(MULTIPLY, ValueReference(weight), ValueReference(constant), outputs=[0])
    product = writer.multiply(writer.input())
    graph = writer.graph(product)
    plan = plan_of(graph, (0, 1))
    verify_plan(plan, graph)
    assert stage_graph(graph, plan, 0).symbols == ()
    assert stage_graph(graph, plan, 1).symbols == (BATCH,)


def test_subgraphs_are_found_in_lists_tuples_and_keywords() -> None:
    writer = GraphWriter()
    for _ in range(4):
        branch = GraphWriter()
        writer.subgraphs.append(replace(branch.graph(branch.multiply(branch.input())), symbols=()))
    writer.multiply(writer.input())
    value = writer.tensor()
    operands = (ArgumentList((SubgraphReference(3),)), (SubgraphReference(1), 5))
    writer.call(COND, *operands, ValueReference(1), outputs=[value])
    writer.nodes[-1] = replace(writer.nodes[-1], keyword_arguments=(("other", SubgraphReference(2)),))
    graph = writer.graph(value)
    plan = plan_of(graph, (0, 1))
    part = stage_graph(graph, plan, 1)
    assert part.subgraphs == graph.subgraphs[1:]
    assert part.nodes[0].arguments == (
        ArgumentList((SubgraphReference(2),)),
        (SubgraphReference(0), 5),
        ValueReference(1),
    )
    assert part.nodes[0].keyword_arguments == (("other", SubgraphReference(1)),)
    assert part.symbols == (BATCH,)
    assert stage_graph(graph, plan, 0).subgraphs == ()


def test_a_stage_graph_names_what_enters_and_what_leaves() -> None:
    writer = GraphWriter()
    batch, size = writer.input(), writer.scalar()
    writer.call(SIZE, ValueReference(batch), 0, outputs=[size])
    product = writer.multiply(batch, writer.state())
    view = writer.tensor()
    writer.values[view - 1] = replace(writer.values[view - 1], dims=(2, 2))
    writer.call(VIEW, ValueReference(product), ValueReference(size), outputs=[view])
    graph = replace(writer.graph(view, size), training=True)
    plan = plan_of(graph, (0, 1, 2))
    second = stage_graph(graph, plan, 1)
    assert [(entry.name, entry.content) for entry in second.inputs] == [("value_1", ValueReference(batch))]
    assert [(output.name, output.content) for output in second.outputs] == [
        (f"value_{product}", ValueReference(product))
    ]
    assert [state.name for state in second.states] == ["block.0.weight"]
    assert second.training
    assert second.input_tree == TreeTuple((TreeTuple((TreeLeaf(),)), TreeDict((), ())))
    assert second.output_tree == TreeTuple((TreeLeaf(),))
    third = stage_graph(graph, plan, 2)
    # The size's expression speaks of the batch; neither of the tensors would have to.
    assert third.symbols == (BATCH,)
    assert [value.id for value in third.values] == [size, product, view]
