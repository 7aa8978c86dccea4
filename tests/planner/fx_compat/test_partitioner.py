"""The partitioner's dispatch, its records, and each defect of torch.fx's that it does not have."""

import inspect
import operator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental import accelerator_partitioner, partitioner_utils

from planner import fx_compat
from planner.errors import Infeasible, PlannerError
from planner.fx_compat.partitioner import (
    Device,
    NodeLatency,
    Partition,
    Partitioner,
    PartitionerConfig,
    PartitionMode,
    get_comm_latency_between,
    get_device_to_partitions_mapping,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    get_partition_to_latency_mapping,
    get_size_of_all_nodes,
    reorganize_partitions,
)
from tests.builders.fx_programs import operations, random_program, total_bytes

torch.set_num_threads(1)


def devices(*sizes: int) -> list[Device]:
    return [Device(f"d{index}", size, index) for index, size in enumerate(sizes)]


def traced(module: nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    program = fx.symbolic_trace(module)
    get_size_of_all_nodes(program, list(inputs))
    return program


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


class Branches(nn.Module):
    """A layer of 112 bytes with its input, four sums of 48."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.one, self.two = nn.Parameter(torch.rand(4)), nn.Parameter(torch.rand(4))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        first = a + self.one
        second = first + self.two
        third = second + self.layer(first)
        return second + third


def seconds_of(program: fx.GraphModule) -> dict[fx.Node, NodeLatency]:
    return {
        node: NodeLatency(float(node.size_bytes.total_size), 2.0 * node.size_bytes.output_size)
        for node in operations(program)
    }


# Dispatch


def test_a_program_that_fits_goes_whole_to_the_first_of_the_largest_devices() -> None:
    inputs = torch.rand(1), torch.rand(1)
    program = traced(Sum(), *inputs)
    for mode in (mode for mode in PartitionMode if mode is not PartitionMode.aot_based):
        result = Partitioner().partition_graph(program, program, PartitionerConfig(devices(125, 150, 150), mode))
        assert [node.logical_device_ids for node in result.dag.nodes] == [[1]]
        assert torch.equal(result.module_with_submodules(*inputs), program(*inputs))


def test_single_partition_may_fill_its_device() -> None:
    program = traced(Sum(), torch.rand(4), torch.rand(4))
    result = Partitioner().partition_graph(program, program, PartitionerConfig(devices(48)))
    assert result.dag.nodes[0].size_bytes == 48


@pytest.mark.parametrize(
    ("devices_of_config", "message"),
    [
        ([], "No devices"),
        (devices(4, 4), "40 are lacking"),
        ([Device("a", 40, 0), Device("b", 40, 0)], "both have logical id 0"),
        ([Device("a", -1, 0)], "-1 bytes"),
        ([Device("a", float("nan"), 0)], "nan bytes"),
    ],
)
def test_devices_that_cannot_do_are_refused(devices_of_config: list[Device], message: str) -> None:
    program = traced(Sum(), torch.rand(4), torch.rand(4))
    with pytest.raises(RuntimeError, match=message) as caught:
        Partitioner().partition_graph(program, program, PartitionerConfig(devices_of_config))
    assert isinstance(caught.value, PlannerError)


def test_an_operation_larger_than_every_device_is_named() -> None:
    program = traced(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.rand(4))
    with pytest.raises(Infeasible, match=r"_0 is too large to fit any device: it needs 112 bytes"):
        Partitioner().partition_graph(program, program, PartitionerConfig(devices(*[60] * 5)))


def test_a_program_without_operations_is_refused() -> None:
    program = traced(nn.Identity(), torch.rand(1))
    graph = fx.Graph()
    graph.output(graph.placeholder("x"))
    program = fx.GraphModule(nn.Module(), graph)
    get_size_of_all_nodes(program, [torch.rand(1)])
    with pytest.raises(RuntimeError, match="No Partition since no operations"):
        Partitioner().partition_graph(program, program, PartitionerConfig(devices(10)))


def test_shapes_have_to_be_known() -> None:
    program = fx.symbolic_trace(Sum())
    with pytest.raises(RuntimeError, match=r"node 'a' has no shape; run get_size_of_all_nodes"):
        Partitioner().partition_graph(program, program, PartitionerConfig(devices(10)))


# What is known of torch.fx's own tests, in other words


def test_operations_leave_a_partition_with_what_only_they_read() -> None:
    program = traced(Branches(), torch.rand(4))
    partitioner = Partitioner()
    partitioner.partition_graph(program, program, PartitionerConfig(devices(1000)))
    (partition,) = partitioner.partitions
    before = partition.used_mem_bytes
    second = next(node for node in partition.nodes if node.name == "add_1")
    partition.remove_node(second)
    # Its 16 bytes and its parameter's go, and two readers have to receive it.
    assert partition.used_mem_bytes == before - 32 + 32
    assert "two" not in {node.name for node in partition.nodes}
    partition.add_node(second)
    assert partition.used_mem_bytes == before


def test_size_based_fills_devices_in_list_order() -> None:
    program = traced(Branches(), torch.rand(4))
    result = Partitioner().partition_graph(program, program, PartitionerConfig(devices(200, 200)))
    assert [(node.logical_device_ids, node.size_bytes) for node in result.dag.nodes] == [([0], 192), ([1], 48)]


def test_copies_take_the_smallest_idle_devices() -> None:
    program = traced(Branches(), torch.rand(4))
    partitioner = Partitioner()
    config = PartitionerConfig(devices(200, 200, 100, 100, 200, 100), saturate_host=True)
    partitioner.partition_graph(program, program, config)
    assert [partition.logical_device_ids for partition in partitioner.partitions] == [[0, 4], [1, 2]]


def test_given_partitions_are_taken_as_they_are() -> None:
    program = traced(Branches(), torch.rand(4))
    first, *rest = operations(program)
    config = PartitionerConfig(
        devices(400, 400),
        PartitionMode.aot_based,
        node_to_partition_mapping={first: 7, **dict.fromkeys(rest, 3)},
        partition_to_logical_device_mapping={7: [1], 3: [0, 1]},
    )
    partitioner = Partitioner()
    result = partitioner.partition_graph(program, program, config)
    assert [(str(node), node.logical_device_ids) for node in result.dag.nodes] == [
        ("submod_7", [1]),
        ("submod_3", [0, 1]),
    ]
    assert partitioner.node_to_partition[first] == 7


class Recommender(nn.Module):
    def __init__(self, rows: list[int]) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, 4, mode="sum") for count in rows)
        self.top = nn.Linear(4 * len(rows) + 4, 1)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        looked_up = [table(ids, offsets) for table in self.tables]
        return self.top(torch.cat([self.dense(x), *looked_up], dim=1))


def recommender(rows: list[int]) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    inputs = torch.rand(2, 4), torch.randint(10, (8,)), torch.tensor([0, 4])
    return traced(Recommender(rows), *inputs), inputs


@pytest.mark.parametrize("sizes", [[20_000] * 3, [12_000, 30_000, 20_000]])
def test_tables_are_spread_and_the_rest_is_beside_each(sizes: list[int]) -> None:
    program, inputs = recommender([500, 1000, 1000, 500])
    partitioner = Partitioner()
    result = partitioner.partition_graph(program, program, PartitionerConfig(devices(*sizes), PartitionMode.sparse_nn))
    assert torch.equal(result.module_with_submodules(*inputs), program(*inputs))
    sparse = [part for part in partitioner.partitions if any("tables" in node.name for node in part.nodes)]
    used = sorted(device for part in sparse for device in part.logical_device_ids)
    assert len(used) == len(set(used)) == len(sparse)
    assert len(sparse) > 1
    for part in partitioner.partitions:
        assert part in sparse or sorted(part.logical_device_ids) == used
    for device, size in enumerate(sizes):
        assert sum(part.used_mem_bytes for part in partitioner.partitions if device in part.logical_device_ids) <= size


# Defects


def test_moves_reach_the_module_that_is_returned() -> None:
    program = traced(Branches(), torch.rand(4))
    for mode in (PartitionMode.kl_based, PartitionMode.cost_aware):
        partitioner = Partitioner()
        config = PartitionerConfig(
            devices(170, 170), mode, transfer_rate_bytes_per_sec=2, node_to_latency_mapping=seconds_of(program)
        )
        result = partitioner.partition_graph(program, program, config)
        split = dict(result.module_with_submodules.named_children())
        for partition in partitioner.partitions:
            inside = operations(split[f"submod_{partition.partition_id}"])
            nodes = [node for node in program.graph.nodes if node in partition.nodes and node.op.startswith("call_")]
            assert [node.op for node in nodes] == [node.op for node in inside]
            assert all(partitioner.node_to_partition[node] == partition.partition_id for node in nodes)


class WritesInPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        other = x + 1
        read = doubled + other
        doubled.add_(1)
        return read + doubled * other


def test_writes_in_place_keep_their_order() -> None:
    x = torch.rand(64)
    program = traced(WritesInPlace(), x.clone())
    for sizes in ([1100] * 4, [1300, 1100, 1500], [800] * 6):
        for mode in (PartitionMode.cost_aware, PartitionMode.kl_based):
            config = PartitionerConfig(
                devices(*sizes), mode, transfer_rate_bytes_per_sec=1, node_to_latency_mapping=seconds_of(program)
            )
            result = Partitioner().partition_graph(program, program, config)
            assert torch.equal(result.module_with_submodules(x.clone()), program(x.clone()))


def test_dag_has_the_devices_of_partitions_by_id() -> None:
    program = traced(Branches(), torch.rand(4))
    first, *rest = operations(program)
    config = PartitionerConfig(
        devices(400, 400),
        PartitionMode.aot_based,
        node_to_partition_mapping={**dict.fromkeys(rest, 0), first: 1},
        partition_to_logical_device_mapping={0: [0], 1: [1]},
    )
    result = Partitioner().partition_graph(program, program, config)
    assert {str(node): node.logical_device_ids for node in result.dag.nodes} == {"submod_0": [0], "submod_1": [1]}


def test_a_stage_with_several_consumers_lists_itself_as_its_output() -> None:
    program = traced(Branches(), torch.rand(4))
    config = PartitionerConfig(
        devices(400),
        PartitionMode.aot_based,
        node_to_partition_mapping={node: index for index, node in enumerate(operations(program))},
        partition_to_logical_device_mapping={index: [0] for index in range(5)},
    )
    result = Partitioner().partition_graph(program, program, config)
    first = result.dag.nodes[0]
    assert len(first.submodule_node.users) > 1
    assert first.output_nodes == [first.submodule_node]


def test_every_partition_has_a_device_or_there_is_an_error() -> None:
    refused = 0
    for seed in range(4):
        program, _ = random_program(seed, 9)
        total = total_bytes(program)
        for mode in (PartitionMode.cost_aware, PartitionMode.kl_based, PartitionMode.size_based):
            partitioner = Partitioner()
            config = PartitionerConfig(
                devices(*[int(total * 0.4)] * 3),
                mode,
                transfer_rate_bytes_per_sec=8,
                node_to_latency_mapping=seconds_of(program),
            )
            try:
                partitioner.partition_graph(program, program, config)
            except Infeasible:
                refused += 1
                continue
            assert all(partition.logical_device_ids for partition in partitioner.partitions)
    assert refused < 10


def test_first_fit_that_runs_out_of_devices_is_no_refusal() -> None:
    graph, root = fx.Graph(), nn.Module()
    x = graph.placeholder("x")
    for index, width in enumerate((4, 16)):
        root.add_module(f"layer{index}", nn.Linear(4, width))
    ends = tuple(graph.call_module(f"layer{index}", (x,)) for index in range(2))
    graph.output(ends)
    program = fx.GraphModule(root, graph)
    inputs = [torch.rand(4)]
    get_size_of_all_nodes(program, inputs)
    # The first layer's 112 bytes open the device that only the second, of 400, would fill.
    partitioner = Partitioner()
    partitioner.partition_graph(program, program, PartitionerConfig(devices(400, 112)))
    assert [partition.logical_device_ids for partition in partitioner.partitions] == [[1], [0]]


@pytest.mark.parametrize(
    ("partitions", "mapped", "said"),
    [
        ([0, 0, 0, 0], {0: [0]}, "no partition for 1 operations: add_3"),
        ([0, 0, 0, 0, 0], {0: [5]}, "partition 0 is mapped to device 5"),
        ([0, 0, 0, 0, 0], {0: []}, "partition 0 has no device"),
        ([0, 0, 0, 0, 1], {0: [0]}, "partition 1 has no device"),
        ([0, 1, 1, 1, 1], {0: [0], 1: [1]}, "'d1' .1. need 192 bytes, it has 100: 92 are lacking"),
        # Of 48 bytes each, with two tensors that two of them hold.
        ([0, 1, 3, 3, 2], {0: [1], 1: [1], 2: [1], 3: [0]}, "'d1' .1. need 112 bytes, it has 100: 12 are lacking"),
        ([0, 1, 0, 1, 0], {0: [0], 1: [0]}, "circle: 0 -> 1 -> 0"),
    ],
)
def test_given_partitions_are_checked(partitions: list[int], mapped: dict[int, list[int]], said: str) -> None:
    program = traced(Branches(), torch.rand(4))
    config = PartitionerConfig(
        devices(400, 100),
        PartitionMode.aot_based,
        node_to_partition_mapping=dict(zip(operations(program), partitions, strict=False)),
        partition_to_logical_device_mapping=mapped,
    )
    with pytest.raises(RuntimeError, match=said):
        Partitioner().partition_graph(program, program, config)


def residual(length: int) -> fx.GraphModule:
    graph = fx.Graph()
    stream = graph.placeholder("x")
    for _ in range(length):
        stream = graph.call_function(operator.add, (graph.call_function(torch.relu, (stream,)), stream))
    graph.output(stream)
    program = fx.GraphModule(nn.Module(), graph)
    get_size_of_all_nodes(program, [torch.rand(4)])
    return program


def test_latency_of_a_deep_residual_program_takes_linear_time() -> None:
    program = residual(1200)
    partition = Partition(0)
    partition.nodes = set(program.graph.nodes) - set(program.graph.find_nodes(op="output"))
    seconds = dict.fromkeys(operations(program), NodeLatency(1.0, 2.0))
    assert get_latency_of_one_partition(partition, seconds) == (2400.0, 4800.0, 4800.0)
    singles = [Partition(index) for index in range(2400)]
    for single, node in zip(singles, operations(program), strict=True):
        single.add_node(node)
    reorganize_partitions(singles)
    inside = get_partition_to_latency_mapping(singles, seconds)
    # The input, which the first two read, counts as sent as well.
    assert get_latency_of_partitioned_graph(singles, inside, 16.0) == 4800.0 + 2399 + 1


def test_nothing_passes_at_rate_zero() -> None:
    program = residual(2)
    one, other = Partition(0), Partition(1)
    one.add_node(operations(program)[1])
    other.add_node(operations(program)[2])
    assert get_comm_latency_between(one, other, 0.0) == float("inf")
    assert get_comm_latency_between(other, one, 0.0) == 0.0
    one.logical_device_ids = other.logical_device_ids = [3]
    assert get_comm_latency_between(one, other, 0.0) == 0.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_mode_that_weighs_transfers_needs_a_rate(rate: float) -> None:
    program = traced(Branches(), torch.rand(4))
    config = PartitionerConfig(
        devices(170, 170),
        PartitionMode.cost_aware,
        transfer_rate_bytes_per_sec=rate,
        node_to_latency_mapping=seconds_of(program),
    )
    with pytest.raises(RuntimeError, match="transfer_rate_bytes_per_sec is"):
        Partitioner().partition_graph(program, program, config)


@pytest.mark.parametrize("wrong", [None, NodeLatency(-1.0, 0.0), NodeLatency(0.0, float("nan"))])
def test_latencies_have_to_be_there_and_be_times(wrong: NodeLatency | None) -> None:
    program = traced(Branches(), torch.rand(4))
    seconds: dict[fx.Node, Any] = seconds_of(program)
    last = operations(program)[-1]
    seconds.pop(last)
    if wrong is not None:
        seconds[last] = wrong
    config = PartitionerConfig(
        devices(170, 170),
        PartitionMode.kl_based,
        transfer_rate_bytes_per_sec=1,
        node_to_latency_mapping=seconds,
    )
    with pytest.raises(RuntimeError, match="node 'add_3'"):
        Partitioner().partition_graph(program, program, config)


class Several(nn.Module):
    """Outputs that are tuples, nested, or no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = torch.split(x, 2, dim=1)
        states, (last, _) = self.cell(torch.cat([right, left], dim=1))
        return states.reshape(x.size(0), -1) + last


def test_nodes_with_several_outputs_or_no_tensor_are_sized() -> None:
    x = torch.rand(3, 4)
    program = traced(Several(), x)
    sizes = {node.name: node.size_bytes.output_size for node in program.graph.nodes if node.op != "output"}
    assert sizes["split"] == 48
    assert sizes["size"] == 0
    assert sizes["cell"] == 48 + 16 + 16
    total = total_bytes(program)
    result = Partitioner().partition_graph(program, program, PartitionerConfig(devices(total - 1, total - 1)))
    assert torch.equal(result.module_with_submodules(x), program(x))


def test_devices_may_be_filled_to_the_last_byte() -> None:
    program = residual(1)
    one, other = Partition(0), Partition(1)
    for partition, node in zip((one, other), operations(program), strict=True):
        partition.add_node(node)
    assert get_device_to_partitions_mapping([one, other], devices(one.used_mem_bytes, other.used_mem_bytes))
    assert sorted(one.logical_device_ids + other.logical_device_ids) == [0, 1]


def test_without_tables_the_sparse_mode_places_by_size() -> None:
    program = traced(Branches(), torch.rand(4))
    by_mode = {}
    for mode in (PartitionMode.sparse_nn, PartitionMode.size_based):
        result = Partitioner().partition_graph(program, program, PartitionerConfig(devices(200, 200), mode))
        by_mode[mode] = [(node.logical_device_ids, node.size_bytes) for node in result.dag.nodes]
    assert by_mode[PartitionMode.sparse_nn] == by_mode[PartitionMode.size_based]


class NamedLikeATable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.after_Embedding = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.rand(400, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.after_Embedding(nn.functional.embedding(ids, self.table)))


def test_tables_are_told_by_what_they_do() -> None:
    program = traced(NamedLikeATable(), torch.randint(400, (2,)))
    partitioner = Partitioner()
    total = total_bytes(program)
    partitioner.partition_graph(
        program, program, PartitionerConfig(devices(total - 1, 10, total - 8), PartitionMode.size_based)
    )
    from planner.fx_compat.partitioning.embeddings import embedding_nodes
    from planner.fx_compat.partitioning.numbers import numbered
    from planner.fx_compat.partitioning.sizes import nodes_before_output, sizes_of_nodes

    nodes = nodes_before_output(program.graph)
    tables = embedding_nodes(numbered(nodes, sizes_of_nodes(program, nodes)), program)
    assert [nodes[index].name for index in tables] == ["embedding"]


def test_nothing_is_printed_and_nothing_is_left_on_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    program = fx.symbolic_trace(Branches())
    get_size_of_all_nodes(program, [torch.rand(4)])
    for node in program.graph.nodes:
        if hasattr(node, "size_bytes"):
            del node.size_bytes
    before = [
        (sorted(vars(node)) if hasattr(node, "__dict__") else [], sorted(node.meta)) for node in program.graph.nodes
    ]
    Partitioner().partition_graph(program, program, PartitionerConfig(devices(200, 200, 200, 200), saturate_host=True))
    after = [
        (sorted(vars(node)) if hasattr(node, "__dict__") else [], sorted(node.meta)) for node in program.graph.nodes
    ]
    assert after == before
    assert not any(hasattr(node, "size_bytes") for node in program.graph.nodes)
    assert capsys.readouterr().out == ""


def test_a_partitioner_may_be_used_again() -> None:
    program = traced(Branches(), torch.rand(4))
    partitioner = Partitioner()
    first = partitioner.partition_graph(program, program, PartitionerConfig(devices(200, 200)))
    again = partitioner.partition_graph(program, program, PartitionerConfig(devices(200, 200)))
    assert len(partitioner.partitions) == 2
    assert [node.size_bytes for node in first.dag.nodes] == [node.size_bytes for node in again.dag.nodes]


def test_same_input_same_partitions() -> None:
    partitions = []
    for _ in range(2):
        program, _ = random_program(5, 20)
        partitioner = Partitioner()
        config = PartitionerConfig(
            devices(*[int(total_bytes(program) * 0.4)] * 4),
            PartitionMode.cost_aware,
            transfer_rate_bytes_per_sec=8,
            node_to_latency_mapping=seconds_of(program),
        )
        partitioner.partition_graph(program, program, config)
        partitions.append([(sorted(map(str, one.nodes)), one.logical_device_ids) for one in partitioner.partitions])
    assert partitions[0] == partitions[1]


def test_torchs_own_functions_take_these_partitions() -> None:
    program = traced(Branches(), torch.rand(4))
    partitioner = Partitioner()
    partitioner.partition_graph(program, program, PartitionerConfig(devices(200, 200)))
    seconds = seconds_of(program)
    inside = get_partition_to_latency_mapping(partitioner.partitions, seconds)
    theirs = partitioner_utils.get_partition_to_latency_mapping(partitioner.partitions, seconds)
    assert [latency.overall_latency_sec for latency in inside.values()] == [
        latency.overall_latency_sec for latency in theirs.values()
    ]


# Methods of their own


def test_public_methods_are_those_of_torch() -> None:
    """By name and parameters, so that what derives from torch's Partitioner derives from this one."""
    for name, theirs in inspect.getmembers(accelerator_partitioner.Partitioner, inspect.isfunction):
        ours = getattr(Partitioner, name)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters], name


def test_a_subclass_may_choose_partitions_of_its_own() -> None:
    """As one that derives from torch's: a mode's method makes partitions, and what follows is done by the base."""

    class Alternating(Partitioner):
        def size_based_partition(self) -> None:
            for number, node in enumerate(operations(self.graph_module)):
                if number < 2:
                    self.create_single_node_partition(node)
                else:
                    self.partitions[-1].add_node(node)
            for partition, device in zip(self.partitions, self.devices, strict=False):
                partition.logical_device_ids = [device.logical_id]
            self.node_to_partition = {
                node: partition.partition_id for partition in self.partitions for node in partition.nodes
            }

    batch = torch.rand(4)
    program = traced(Branches(), batch)
    partitioner = Alternating()
    result = partitioner.partition_graph(program, program, PartitionerConfig(devices(150, 200)))
    assert partitioner.graph_module is partitioner.torch_module is program
    assert [node.logical_device_ids for node in result.dag.nodes] == [[0], [1]]
    assert torch.equal(result.module_with_submodules(batch), program(batch))


def test_methods_called_alone_are_about_the_graph_module() -> None:
    batch = torch.rand(4)
    program = traced(Branches(), batch)
    partitioner = Partitioner()
    partitioner.graph_module = partitioner.torch_module = program
    partitioner.devices = devices(150, 200, 200)
    latencies = seconds_of(program)
    of_nodes = {node: int(number > 2) for number, node in enumerate(operations(program))}
    for choose in (
        partitioner.size_based_partition,
        lambda: partitioner.sparse_nn_partition(200),
        lambda: partitioner.cost_aware_partition(10.0, latencies),
        lambda: partitioner.kl_based_partition(10.0, latencies),
        lambda: partitioner.aot_based_partition(of_nodes, {0: [1], 1: [2]}),
        lambda: partitioner.find_single_partition(total_bytes(program), 2),
    ):
        choose()
        split = partitioner.do_partition()
        dag = partitioner.dump_dag(split)
        assert [node.logical_device_ids for node in dag.nodes]
        assert torch.equal(split(batch), program(batch))


def test_what_torchs_modules_export_is_exported() -> None:
    for name in ("get_size_of_all_nodes", "Partitioner", "PartitionerConfig", "get_latency_of_partitioned_graph"):
        assert name in fx_compat.__all__
        assert getattr(fx_compat, name) is not None
