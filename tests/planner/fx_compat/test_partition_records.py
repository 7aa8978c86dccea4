"""Partitions as records that a caller changes by hand: joined, numbered, on devices, sized and timed."""

import pytest
import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from planner.fx_compat.partitioner import (
    Device,
    NodeLatency,
    Partition,
    check_dependency,
    combine_two_partitions,
    get_bfs_level_partition,
    get_device_partition_stats,
    get_extra_size_of,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    get_logical_id_to_device,
    get_node_to_partition_mapping,
    get_size_of_all_nodes,
    reorganize_partitions,
    reset_partition_device,
    set_parents_and_children,
)
from planner.fx_compat.partitioning.embeddings import embedding_nodes
from planner.fx_compat.partitioning.errors import BadMapping, NothingToPartition
from planner.fx_compat.partitioning.numbers import numbered
from planner.fx_compat.partitioning.sizes import nodes_before_output, size_of_node, sizes_of_nodes
from tests.builders.fx_programs import operations


def four_sums() -> tuple[fx.GraphModule, list[fx.Node]]:
    """a -> b -> c, a -> c -> d, each 16 bytes from an input of 16."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.add, (x, x))
    b = graph.call_function(torch.neg, (a,))
    c = graph.call_function(torch.add, (a, b))
    d = graph.call_function(torch.neg, (c,))
    graph.output(d)
    program = fx.GraphModule(nn.Module(), graph)
    get_size_of_all_nodes(program, [torch.rand(4)])
    return program, [a, b, c, d]


def one_each(nodes: list[fx.Node]) -> list[Partition]:
    partitions = [Partition(10 + index) for index in range(len(nodes))]
    for partition, node in zip(partitions, nodes, strict=True):
        partition.add_node(node)
    return partitions


def test_partitions_are_numbered_by_place_and_know_who_reads_what_they_make() -> None:
    _, nodes = four_sums()
    partitions = one_each(nodes)
    reorganize_partitions(partitions)
    a, b, c, d = partitions
    assert [one.partition_id for one in partitions] == [0, 1, 2, 3]
    assert [one.children for one in partitions] == [{b, c}, {c}, {d}, set()]
    assert [one.parents for one in partitions] == [set(), {a}, {a, b}, {c}]
    assert get_node_to_partition_mapping(partitions)[nodes[2]] == 2


def test_a_level_is_the_longest_way_to_a_partition() -> None:
    _, nodes = four_sums()
    partitions = one_each(nodes)
    set_parents_and_children(partitions)
    get_bfs_level_partition(list(reversed(partitions)))
    assert [one.bfs_level for one in partitions] == [0, 1, 2, 3]


def test_two_partitions_join_at_the_end_of_the_list() -> None:
    _, nodes = four_sums()
    partitions = one_each(nodes)
    a, b, c, d = partitions
    combine_two_partitions(a, c, partitions)
    assert partitions[:2] == [b, d]
    joined = partitions[2]
    assert joined.nodes == a.nodes | c.nodes
    assert joined.partition_id == 2
    # The input, a, c, and b that c reads.
    assert joined.used_mem_bytes == 4 * 16
    assert (joined.parents, joined.children) == ({b}, {b, d})
    assert check_dependency(joined)
    assert check_dependency(b)
    assert not check_dependency(d)


def test_a_value_that_a_partition_holds_itself_makes_it_no_child() -> None:
    _, nodes = four_sums()
    first, second = Partition(0), Partition(1)
    first.add_node(nodes[0])
    for node in nodes:
        second.add_node(node)
    set_parents_and_children([first, second])
    assert (first.children, second.parents) == (set(), set())


def test_a_node_leaves_with_the_inputs_that_only_it_reads() -> None:
    _, nodes = four_sums()
    partition = Partition(0)
    partition.add_node(nodes[0])
    partition.add_node(nodes[3])
    partition.remove_node(nodes[1])
    assert len(partition.nodes) == 3
    partition.remove_node(nodes[0])
    assert partition.nodes == {nodes[3]}
    assert partition.used_mem_bytes == get_extra_size_of(nodes[3], partition.nodes) == 32


def test_devices_know_what_they_hold_and_what_is_left() -> None:
    _, nodes = four_sums()
    a, b, c, _ = one_each(nodes)
    devices = [Device("one", 100, 5), Device("other", 60, 2)]
    a.logical_device_ids, b.logical_device_ids = [5, 2], [5]
    by_device, bytes_left, homeless = get_device_partition_stats([a, b, c], devices)
    assert by_device == {devices[0]: [a, b], devices[1]: [a]}
    assert bytes_left == {devices[0]: 100 - 32 - 32, devices[1]: 60 - 32}
    assert homeless == [c]
    assert get_logical_id_to_device(devices) == {5: devices[0], 2: devices[1]}
    b.logical_device_ids = [7]
    with pytest.raises(BadMapping, match="device 7, which is not among the logical ids 2, 5"):
        get_device_partition_stats([a, b], devices)
    reset_partition_device([a, b])
    assert a.logical_device_ids == b.logical_device_ids == []


def test_latencies_that_cannot_be_told_are_named() -> None:
    _, nodes = four_sums()
    partitions = one_each(nodes[:2])
    with pytest.raises(NothingToPartition, match="node 'add' has no entry"):
        get_latency_of_one_partition(partitions[0], {})
    partitions[0].children = {partitions[1]}
    partitions[1].children = {partitions[0]}
    seconds = {one: get_latency_of_one_partition(one, dict.fromkeys(nodes, NodeLatency(1, 2))) for one in partitions}
    assert seconds[partitions[0]] == (1, 2, 2)
    with pytest.raises(NothingToPartition, match="10, 11 depend on each other"):
        get_latency_of_partitioned_graph(partitions, seconds, 1.0)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        whole = self.layer(x)
        return whole, {"half": whole.half()}


def test_a_called_module_weighs_its_parameters_at_the_width_of_what_it_makes() -> None:
    program = fx.symbolic_trace(TwoLayers())
    program(torch.rand(3, 4))
    layer = operations(program)[0]
    with pytest.raises(NothingToPartition, match="node 'layer' has no shape"):
        sizes_of_nodes(program, [layer])
    layer.size_bytes = (7, 9)
    assert sizes_of_nodes(program, [layer])[layer] == (7, 9) == size_of_node(layer)
    del layer.size_bytes
    ShapeProp(program).propagate(torch.rand(3, 4))
    assert size_of_node(layer) == (3 * 2 * 4, 3 * 2 * 4 + 4 * (4 * 2 + 2))
    half = operations(program)[1]
    assert size_of_node(half) == (12, 12)


def test_shapes_of_a_captured_program_count_as_well() -> None:
    """`val` holds tensors, in lists and dicts."""
    graph = fx.Graph()
    node = graph.call_function(torch.neg, (graph.placeholder("x"),))
    graph.output(node)
    program = fx.GraphModule(nn.Module(), graph)
    node.meta["val"] = [torch.zeros(3), {"more": torch.zeros(2, dtype=torch.float64)}, None]
    assert sizes_of_nodes(program, [node])[node] == (3 * 4 + 2 * 8, 3 * 4 + 2 * 8)
    node.op = "call_module"
    node.target = "absent"
    with pytest.raises(NothingToPartition, match="calls module 'absent', which is not there"):
        sizes_of_nodes(program, [node])


def test_tables_are_told_by_functions_operators_and_types() -> None:
    class FusedEmbeddings(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids * 1.0

    root = nn.Module()
    root.fused, root.plain, root.relu = FusedEmbeddings(), nn.EmbeddingBag(3, 2), nn.ReLU()
    root.register_parameter("table", nn.Parameter(torch.rand(3, 2)))
    graph = fx.Graph()
    ids, table = graph.placeholder("ids"), graph.get_attr("table")
    lookups = [
        graph.call_module("fused", (ids,)),
        graph.call_module("plain", (ids,)),
        graph.call_function(torch.ops.aten.embedding.default, (table, ids)),
        graph.call_function(nn.functional.embedding, (ids, table)),
    ]
    others = [graph.call_module("relu", (lookups[0],)), graph.call_method("float", (ids,))]
    graph.output((*lookups, *others))
    program = fx.GraphModule(root, graph)
    nodes = nodes_before_output(program.graph)
    for node in nodes:
        node.size_bytes = (1, 1)
    tables = embedding_nodes(numbered(nodes, sizes_of_nodes(program, nodes)), program)
    assert {nodes[index] for index in tables} == set(lookups)
