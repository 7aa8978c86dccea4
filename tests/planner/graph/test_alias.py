"""Which nodes no cut may part, and which values share storage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.graph.alias import DisjointSets, no_cut_groups, storage_roots, storage_sources
from planner.graph.ir import ArgumentList, Operator, OperatorKind, SubgraphReference, ValueReference
from tests.builders.random_graphs import CHUNK, COND, GraphWriter


def test_without_writes_any_cut_is_allowed() -> None:
    writer = GraphWriter()
    view = writer.view(writer.multiply(writer.input(), writer.state()))
    assert no_cut_groups(writer.graph(writer.multiply(view))) == ()


def test_a_storage_is_whole_up_to_its_last_write() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())  # node 0
    early_view = writer.view(product)  # node 1
    writer.multiply(early_view)  # node 2 reads before the write
    writer.multiply(writer.input())  # node 3 has nothing to do with it
    writer.add_in_place(product, product)  # node 4
    late_view = writer.view(early_view)  # node 5 shows what is final
    graph = writer.graph(writer.multiply(late_view, product))  # node 6
    assert no_cut_groups(graph) == ((0, 1, 2, 4),)


def test_a_write_through_a_view_of_one_output_binds_the_node_that_gave_all() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    parts = [writer.tensor(), writer.tensor()]
    writer.call(CHUNK, ValueReference(product), 2, outputs=parts)
    writer.add_in_place(parts[0], parts[0])
    writer.multiply(parts[1])
    assert no_cut_groups(writer.graph(parts[1])) == ((0, 1, 2),)


def test_overlapping_groups_are_one() -> None:
    writer = GraphWriter()
    first = writer.multiply(writer.input())
    second = writer.multiply(writer.input())
    writer.add_in_place(first, first)
    writer.add_in_place(second, first)
    assert no_cut_groups(writer.graph(second)) == ((0, 2), (1, 3))
    writer.add_in_place(first, first)
    assert no_cut_groups(writer.graph(second)) == ((0, 1, 2, 3, 4),)


def test_all_uses_of_a_written_input_are_together() -> None:
    writer = GraphWriter()
    batch = writer.input()
    writer.add_in_place(batch, batch)
    writer.multiply(writer.input())
    graph = writer.graph(writer.multiply(batch))
    assert no_cut_groups(graph) == ((0, 2),)


def test_all_uses_of_a_mutated_state_and_of_what_is_tied_to_it_are_together() -> None:
    writer = GraphWriter()
    buffer, tied = writer.state(tie_group=1, mutated=True), writer.state(tie_group=1)
    writer.multiply(writer.input(), tied)
    writer.multiply(writer.input())
    writer.add_in_place(buffer, writer.inputs[0].content.value_id)  # type: ignore[union-attr]
    graph = writer.graph(writer.multiply(writer.view(buffer)))
    assert no_cut_groups(graph) == ((0, 2, 3, 4),)


def test_a_state_marked_as_mutated_is_believed() -> None:
    writer = GraphWriter()
    buffer = writer.state(mutated=True)
    first = writer.multiply(writer.input(), buffer)
    graph = writer.graph(writer.multiply(writer.multiply(first), buffer))
    assert no_cut_groups(graph) == ((0, 2),)


def test_a_written_input_that_is_returned_is_in_the_last_stage() -> None:
    writer = GraphWriter()
    batch = writer.input()
    writer.add_in_place(batch, batch)
    last = writer.multiply(writer.input())
    assert no_cut_groups(writer.graph(batch, last)) == ((0, 1),)


def running_statistics(training: bool | None) -> GraphWriter:
    writer = GraphWriter()
    means = writer.state()
    operator = Operator(kind=OperatorKind.ATEN, name="aten::batch_norm", overload="default")
    for _ in range(2):
        output = writer.tensor()
        references = [ValueReference(value) for value in (writer.input(), means, means)]
        writer.call(operator, *references, ValueReference(means), None, training, outputs=[output])
    return writer


@pytest.mark.parametrize(("training", "groups"), [(True, ((0, 1),)), (False, ())])
def test_norms_write_their_running_statistics_in_training(training: bool, groups: object) -> None:
    assert no_cut_groups(running_statistics(training).graph()) == groups


@pytest.mark.parametrize(("training", "groups"), [(True, ()), (False, ((0, 1, 2),))])
def test_dropout_out_of_training_returns_its_input(training: bool, groups: object) -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    dropped = writer.tensor()
    operator = Operator(kind=OperatorKind.ATEN, name="aten::dropout", overload="default", random=True)
    writer.call(operator, ValueReference(product), 0.5, training, outputs=[dropped])
    writer.add_in_place(dropped, dropped)
    expected = groups or ((1, 2),)
    assert no_cut_groups(writer.graph(dropped)) == expected


def test_a_write_inside_a_branch_is_a_write_of_its_operands() -> None:
    branch = GraphWriter()
    entered = branch.input()
    writer = GraphWriter()
    writer.subgraphs.append(replace(branch.graph(branch.add_in_place(branch.view(entered), entered)), symbols=()))
    product = writer.multiply(writer.input())
    output = writer.tensor()
    operands = ArgumentList((ValueReference(product),))
    writer.call(COND, True, SubgraphReference(0), SubgraphReference(0), operands, outputs=[output])
    assert no_cut_groups(writer.graph(output)) == ((0, 1),)


@pytest.mark.parametrize("position", [1, 2])
def test_a_position_beyond_the_positional_arguments_is_any_keyword(position: int) -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    operator = Operator(kind=OperatorKind.OPAQUE, name="writes an argument", mutated_arguments=(position,))
    writer.call(operator, 1, outputs=[writer.tensor()])
    writer.nodes[-1] = replace(writer.nodes[-1], keyword_arguments=(("out", ValueReference(product)),))
    assert no_cut_groups(writer.graph(product)) == ((0, 1),)


def test_roots_follow_views_to_the_owner() -> None:
    writer = GraphWriter()
    batch = writer.input()
    tied = writer.state(tie_group=2), writer.state(tie_group=2)
    product = writer.multiply(batch)
    viewed = writer.view(writer.view(product))
    written = writer.add_in_place(viewed, batch)
    of_state = writer.view(tied[1])
    roots = storage_roots(writer.graph(written))
    assert (roots[batch], roots[product], roots[viewed], roots[written]) == (batch, product, product, product)
    assert (roots[tied[0]], roots[tied[1]], roots[of_state]) == (tied[0], tied[0], tied[0])


def test_a_reshape_of_what_is_not_contiguous_owns_its_copy() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    transposed, reshaped, again = writer.view(product), writer.tensor(), writer.tensor()
    writer.values[transposed - 1] = replace(writer.values[transposed - 1], strides=(1, 3))
    operator = Operator(kind=OperatorKind.ATEN, name="aten::reshape", overload="default", aliased_arguments=(0,))
    writer.call(operator, ValueReference(transposed), outputs=[reshaped])
    writer.call(operator, ValueReference(reshaped), outputs=[again])
    roots = storage_roots(writer.graph(again))
    assert (roots[transposed], roots[reshaped], roots[again]) == (product, reshaped, reshaped)


def test_each_part_of_a_list_keeps_its_own_root() -> None:
    writer = GraphWriter()
    sources = [writer.multiply(writer.input()), writer.multiply(writer.input())]
    parts = [writer.tensor(), writer.tensor()]
    operator = Operator(kind=OperatorKind.ATEN, name="aten::broadcast_tensors", overload="default")
    writer.call(operator, ArgumentList(tuple(map(ValueReference, sources))), outputs=parts)
    roots = storage_roots(writer.graph(*parts))
    assert [roots[part] for part in parts] == sources


def test_sources_are_one_step_back() -> None:
    writer = GraphWriter()
    product = writer.multiply(writer.input())
    once = writer.view(product)
    again = writer.view(once)
    sources = storage_sources(writer.graph(again))
    assert (sources[product], sources[once], sources[again]) == (product, product, once)


def test_sets_are_joined_by_chains_and_stand_in_order() -> None:
    sets = DisjointSets()
    for one, other in ((9, 8), (8, 7), (7, 6), (3, 5), (6, 9)):
        sets.join(one, other)
    assert [sets.find(item) for item in (9, 8, 7, 6, 5, 4)] == [6, 6, 6, 6, 3, 4]
    assert sets.sets() == ((3, 5), (6, 7, 8, 9))
    assert sets.sets(least=1, items=(1, 4, 9)) == ((1,), (3, 5), (4,), (6, 7, 8, 9))
    assert sets.sets(least=3) == ((6, 7, 8, 9),)


def test_a_written_state_that_is_returned_is_in_the_last_stage() -> None:
    writer = GraphWriter()
    state = writer.state(mutated=True)
    writer.add_in_place(state, writer.input())
    writer.multiply(writer.input())
    last = writer.multiply(writer.input())
    assert no_cut_groups(writer.graph(last)) == ()
    assert no_cut_groups(writer.graph(state, last)) == ((0, 2),)
