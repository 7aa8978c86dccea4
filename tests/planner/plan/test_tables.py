"""Crossings, liveness tables, edges, ties and ranges of small programs, written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph.ir import Graph
from planner.partition.assignment import Assignment
from planner.plan.assignment import assignment_of
from planner.plan.crossing import Crossing, find_residence
from planner.plan.edges import stage_edges
from planner.plan.liveness import liveness_tables
from planner.plan.node_ranges import node_ranges, nodes_in, ranges_of
from planner.plan.options import Routing
from planner.plan.plan import StageEdge, TieGroup
from planner.plan.ties import tie_groups
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter


def sizes_of(graph: Graph) -> dict[int, int]:
    return {value.id: 10**position for position, value in enumerate(graph.values)}


def crossing(value_id: int, source: int, *reading: int, returned: bool = False, is_input: bool = False) -> Crossing:
    return Crossing(
        value_id=value_id,
        source_stage=source,
        reading_stages=reading,
        returned=returned,
        is_input=is_input,
        num_stages=4,
    )


def spread() -> Graph:
    """Values 1 and 2 are inputs; 3, made by node 0, is read by nodes 1 and 3; 4 is returned from where it is made."""
    writer = GraphWriter()
    early, late = writer.input(), writer.input()
    first = writer.multiply(early)
    second = writer.multiply(first)
    third = writer.multiply(second)
    return writer.graph(writer.multiply(third, first, late), second)


STAGES = (0, 1, 2, 3)


def test_a_value_crosses_to_those_that_read_it_and_if_returned_to_the_last() -> None:
    assert find_residence(spread(), STAGES, 4).crossings == (
        crossing(1, 0, 0, is_input=True),
        crossing(2, 0, 3, is_input=True),
        crossing(3, 0, 1, 3),
        crossing(4, 1, 2, returned=True),
        crossing(5, 2, 3),
    )
    assert crossing(4, 1, 2, returned=True).target_stages == (2, 3)
    assert crossing(4, 1, 2).target_stages == (2,)
    assert crossing(4, 3, returned=True).target_stages == ()


def test_each_stage_hands_on_what_others_read_or_the_graph_returns() -> None:
    assert find_residence(spread(), STAGES, 4).outputs == ((3,), (4,), (5,), (6,))


def test_tables_say_who_made_it_who_reads_it_and_where_it_only_passes() -> None:
    graph = spread()
    tables = liveness_tables(find_residence(graph, STAGES, 4), graph.values_by_id(), sizes_of(graph), 4)
    rows = [[(e.value_id, e.size_bytes, e.producer_stage, e.consumed, e.bypassing) for e in table] for table in tables]
    assert rows == [
        [(1, 1, -1, True, False), (2, 10, -1, False, True)],
        [(2, 10, -1, False, True), (3, 100, 0, True, True)],
        [(2, 10, -1, False, True), (3, 100, 0, False, True), (4, 1000, 1, True, True)],
        [(2, 10, -1, True, False), (3, 100, 0, True, False), (4, 1000, 1, False, True), (5, 10**4, 2, True, False)],
    ]


@pytest.mark.parametrize(
    ("routing", "edges"),
    [
        (
            Routing.DIRECT,
            [
                ((0, 1), (3,), 100),
                ((0, 3), (2, 3), 110),
                ((1, 2), (4,), 1000),
                ((1, 3), (4,), 1000),
                ((2, 3), (5,), 10**4),
            ],
        ),
        (Routing.RELAY, [((0, 1), (2, 3), 110), ((1, 2), (2, 3, 4), 1110), ((2, 3), (2, 3, 4, 5), 11110)]),
    ],
)
def test_edges_carry_what_crosses(routing: Routing, edges: list[tuple[tuple[int, int], tuple[int, ...], int]]) -> None:
    graph = spread()
    derived_edges = stage_edges(find_residence(graph, STAGES, 4), sizes_of(graph), routing, 4, with_gradient={3, 4})
    assert derived_edges == tuple(
        StageEdge(
            source_stage=source,
            target_stage=target,
            value_ids=value_ids,
            size_bytes=size_bytes,
            gradient_value_ids=tuple(value_id for value_id in value_ids if value_id in {3, 4}),
        )
        for (source, target), value_ids, size_bytes in edges
    )


def test_a_stage_that_needs_nothing_hears_from_the_one_before() -> None:
    writer = GraphWriter()
    writer.multiply(writer.input())
    graph = writer.graph(writer.multiply(writer.state()))
    edges = stage_edges(find_residence(graph, (0, 1), 2), sizes_of(graph), Routing.DIRECT, 2)
    assert edges == (StageEdge(source_stage=0, target_stage=1, value_ids=(), size_bytes=0),)


def test_an_input_that_is_written_leaves_from_where_it_is_written() -> None:
    writer = GraphWriter()
    batch = writer.input()
    product = writer.multiply(writer.input())
    writer.add_in_place(batch, product)
    graph = writer.graph(writer.multiply(product), batch)
    residence = find_residence(graph, (0, 1, 2), 3)
    # As it enters it goes to stage 1 only; what the last stage returns is the written one.
    assert [
        (one.value_id, one.source_stage, one.target_stages) for one in residence.crossings if one.value_id == batch
    ] == [
        (batch, 0, (1,)),
        (batch, 1, (2,)),
    ]


def test_states_are_owned_where_they_are_read_and_returned() -> None:
    writer = GraphWriter()
    read, returned, unused = writer.state(), writer.state(), writer.state()
    first = writer.multiply(writer.input(), read)
    graph = writer.graph(writer.multiply(first, read), returned)
    residence = find_residence(graph, (0, 1), 2)
    assert residence.states == (("block.0.weight",), ("block.0.weight", "block.1.weight"))
    assert residence.outputs[1][-1] == graph.nodes[-1].outputs[0]
    assert returned in residence.outputs[1]
    assert unused not in {one.value_id for one in residence.crossings}


def test_states_of_one_storage_in_several_stages_are_a_group() -> None:
    writer = GraphWriter()
    tied = [writer.state(tie_group=4) for _ in range(3)]
    alone = writer.state()
    graph = writer.graph(writer.multiply(writer.input(), *tied, alone))
    states = replace(graph.states[1], requires_grad=True)
    graph = replace(graph, states=(graph.states[0], states, *graph.states[2:]))
    names = [state.name for state in graph.states]
    sizes = {value.id: value.id for value in graph.values}
    owned = [[names[0], names[3]], [names[2], names[3]], [names[1]]]
    assert tie_groups(graph, owned, sizes) == (
        TieGroup(
            id=4,
            members=((names[0], 0), (names[1], 2), (names[2], 1)),
            size_bytes=tied[0],
            requires_grad=True,
        ),
        # A state that two stages read gets an id that the graph does not use.
        TieGroup(id=5, members=((names[3], 0), (names[3], 1)), size_bytes=alone),
    )
    assert tie_groups(graph, [[*names], []], sizes) == ()


def test_ranges_are_half_open_and_as_long_as_they_can_be() -> None:
    assert node_ranges((0, 0, 1, 0, 2, 2), 3) == (((0, 2), (3, 4)), ((2, 3),), ((4, 6),))
    assert ranges_of([]) == ()
    assert nodes_in(((0, 2), (5, 6))) == (0, 1, 5)


def test_a_plan_gives_back_its_assignment() -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(writer.input(), first)
    graph = writer.graph(writer.multiply(first, second), second)
    plan = plan_of(graph, (0, 1, 0 + 2), device_of_stage=(2, 0, 1))
    copied = replace(plan.stages[1], device_ids=("node0/cpu", "node2/cpu"))
    plan = replace(plan, stages=(plan.stages[0], copied, plan.stages[2]), lower_bound_seconds=0.25)
    assert assignment_of(plan) == Assignment(
        stage_of_node=(0, 1, 2),
        device_of_stage=(2, 0, 1),
        reasons=tuple(f"stage {index} of a given split" for index in range(3)),
        lower_bound_seconds=0.25,
        replicas=((), (2,), ()),
        recomputed=(),
    )


def test_a_stage_names_the_modules_at_its_ends() -> None:
    writer = GraphWriter()
    value = writer.input()
    for path in ("", "a", "b.0", "", "c", ""):
        value = writer.multiply(value, module_path=path)
    plan = plan_of(writer.graph(value), (0, 0, 0, 1, 1, 2))
    assert [(stage.first_module, stage.last_module) for stage in plan.stages] == [("a", "b.0"), ("c", "c"), ("", "")]
