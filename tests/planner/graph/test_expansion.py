"""Nodes written out once more for the stages that run them again, and calls with other names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph.expansion import expand
from planner.graph.ir import ArgumentList, Graph, StateKind, ValueReference, values_read
from planner.graph.recomputable import recomputable_nodes
from planner.graph.rename import renamed
from tests.builders.random_graphs import ADD_IN_PLACE, CHUNK, COND, MULTIPLY, GraphWriter


def chain() -> Graph:
    """Values 1 (input), then 2, 3 and 4, each made of the one before; the last also of 2."""
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(first)
    return writer.graph(writer.multiply(second, first))


def shape(graph: Graph) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(values_read(node), node.outputs) for node in graph.nodes]


def test_without_copies_the_graph_is_the_same() -> None:
    graph = chain()
    expansion = expand(graph, (0, 0, 1), ((), ()))
    assert expansion.graph is graph
    assert (expansion.stage_of_node, expansion.original_node) == ((0, 0, 1), (0, 1, 2))


def test_a_copy_stands_behind_its_original_and_only_its_stage_reads_it() -> None:
    expansion = expand(chain(), (0, 1, 2), ((), (0,), (0, 1)))
    assert shape(expansion.graph) == [
        ((1,), (2,)),
        ((1,), (5,)),
        ((1,), (6,)),
        ((5,), (3,)),
        ((6,), (7,)),
        ((7, 6), (4,)),
    ]
    assert expansion.stage_of_node == (0, 1, 2, 1, 2, 2)
    assert expansion.original_node == (0, 0, 0, 1, 1, 2)
    values = expansion.graph.values_by_id()
    assert [values[copy].dims for copy in (5, 6, 7)] == [values[2].dims] * 3
    assert len(values) == 7


def test_results_that_nobody_reads_stay_unread_in_a_copy() -> None:
    writer = GraphWriter()
    parts = [writer.tensor(), 0, writer.tensor()]
    writer.call(CHUNK, ValueReference(writer.input()), 3, outputs=parts)
    graph = writer.graph(writer.multiply(parts[0], parts[2]))
    expansion = expand(graph, (0, 1), ((), (0,)))
    assert expansion.graph.nodes[1].outputs == (5, 0, 6)
    assert values_read(expansion.graph.nodes[2]) == (5, 6)


def test_copies_of_several_results_leave_their_ids_to_no_other_copy() -> None:
    writer = GraphWriter()
    parts = [writer.tensor(), writer.tensor()]
    writer.call(CHUNK, ValueReference(writer.input()), 2, outputs=parts)
    joined = writer.multiply(*parts)
    graph = writer.graph(writer.multiply(joined))
    expansion = expand(graph, (0, 0, 1), ((), (0, 1)))
    assert [node.outputs for node in expansion.graph.nodes] == [(1, 2), (6, 7), (4,), (8,), (5,)]
    assert sorted(value.id for value in expansion.graph.values) == list(range(1, 9))


def test_only_what_an_earlier_stage_runs_is_run_again() -> None:
    with pytest.raises(AssertionError, match="only what an earlier one runs"):
        expand(chain(), (0, 1, 1), ((), (1,)))


def test_calls_are_renamed_wherever_a_value_stands() -> None:
    writer = GraphWriter()
    writer.call(
        MULTIPLY, ValueReference(1), ArgumentList((ValueReference(2), 7)), (ValueReference(3), "x"), outputs=[4]
    )
    node = replace(writer.nodes[0], keyword_arguments=(("out", ValueReference(2)),))
    renumbered = renamed(node, {2: 20, 3: 30})
    assert renumbered.arguments == (
        ValueReference(1),
        ArgumentList((ValueReference(20), 7)),
        (ValueReference(30), "x"),
    )
    assert renumbered.keyword_arguments == (("out", ValueReference(20)),)
    assert renumbered.outputs == (4,)
    assert renamed(node, {}, [9]).outputs == (9,)


def test_the_last_node_stands_for_what_is_returned() -> None:
    assert recomputable_nodes(chain()) == (True, True, False)


def test_nodes_that_may_give_something_else_are_left_out() -> None:
    writer = GraphWriter()
    parameter, buffer, trained, running = (writer.state() for _ in range(4))
    batch = writer.input()
    for state in (parameter, buffer, trained, running):
        writer.multiply(batch, state)
    unread = writer.input()
    writer.call(MULTIPLY, ValueReference(unread), outputs=[0])
    writer.call(replace(MULTIPLY, random=True), ValueReference(unread), outputs=[writer.tensor()])
    for name in ("aten::empty", "aten::empty_like", "aten::new_empty"):
        writer.call(replace(MULTIPLY, name=name), ValueReference(unread), outputs=[writer.tensor()])
    writer.call(COND, ValueReference(unread), outputs=[writer.tensor()])
    written = writer.multiply(unread)
    writer.call(ADD_IN_PLACE, ValueReference(written), ValueReference(batch), outputs=[writer.tensor()])
    writer.multiply(unread)
    graph = writer.graph(writer.multiply(unread))
    kinds = [
        {},
        {"kind": StateKind.BUFFER},
        {"kind": StateKind.CONSTANT, "requires_grad": True},
        {"kind": StateKind.BUFFER, "mutated": True},
    ]
    states = (replace(state, **kind) for state, kind in zip(graph.states, kinds, strict=True))  # type: ignore[arg-type]
    recomputable = recomputable_nodes(replace(graph, states=tuple(states)))
    assert recomputable[:4] == (False, True, False, False)
    assert not any(recomputable[4:-2])
    assert recomputable[-2:] == (True, False)


def test_values_of_a_size_that_is_not_known_before_are_left_out() -> None:
    writer = GraphWriter()
    size, batch = writer.scalar(), writer.input()
    fixed = len(writer.values) + 1
    writer.values.append(replace(writer.values[batch - 1], id=fixed, dims=(2, 4)))
    strided = len(writer.values) + 1
    writer.values.append(replace(writer.values[fixed - 1], id=strided, strides=writer.values[batch - 1].dims))
    writer.call(MULTIPLY, 1, outputs=[size])
    writer.call(MULTIPLY, 1, outputs=[fixed])
    writer.call(MULTIPLY, 1, outputs=[strided])
    graph = writer.graph(writer.multiply(fixed))
    assert recomputable_nodes(graph) == (True, True, True, False)
    unbacked = replace(graph, symbols=(replace(graph.symbols[0], unbacked=True),))
    assert recomputable_nodes(unbacked) == (False, True, False, False)
