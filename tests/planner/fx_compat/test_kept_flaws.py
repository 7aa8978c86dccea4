"""What is counted as torch.fx counts it although it is not so: docs/fx_compat.md says why each of these is kept.

Beside torch's own functions, so that one which torch mends is noticed.
"""

import operator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental import accelerator_partitioner, partitioner_utils
from torch.fx.passes import graph_manipulation
from torch.fx.passes.split_module import split_module as torchs_split

from planner import fx_compat as ours
from tests.builders.fx_programs import operations

torch.set_num_threads(1)


class Torchs:
    Partitioner = accelerator_partitioner.Partitioner
    Device = partitioner_utils.Device
    Partition = partitioner_utils.Partition
    PartitionMode = partitioner_utils.PartitionMode
    PartitionerConfig = partitioner_utils.PartitionerConfig
    NodeLatency = partitioner_utils.NodeLatency
    get_size_of_all_nodes = staticmethod(graph_manipulation.get_size_of_all_nodes)
    get_partition_to_latency_mapping = staticmethod(partitioner_utils.get_partition_to_latency_mapping)
    get_latency_of_partitioned_graph = staticmethod(partitioner_utils.get_latency_of_partitioned_graph)
    reorganize_partitions = staticmethod(accelerator_partitioner.reorganize_partitions)
    split_module = staticmethod(torchs_split)


both = pytest.mark.parametrize("names", [Torchs, ours], ids=["torch", "ours"])


def partitioned(names: Any, program: fx.GraphModule, *room: int, mode: str = "size_based") -> Any:
    devices = [names.Device(f"d{index}", size, index) for index, size in enumerate(room)]
    partitioner = names.Partitioner()
    config = names.PartitionerConfig(devices, names.PartitionMode[mode])
    return partitioner, partitioner.partition_graph(program, program, config)


def sized(names: Any, module: nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    program = fx.symbolic_trace(module)
    names.get_size_of_all_nodes(program, list(inputs))
    return program


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(self.layer(x))
        return result


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, affine=False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x)
        return result


class Looked(nn.Module):
    """A table of float64, read as float32."""

    def __init__(self) -> None:
        super().__init__()
        self.cast = Cast()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cast(x)
        return result


class Cast(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, bias=False, dtype=torch.float64)
        self.__class__.__module__ = "torch.nn.cast"  # a leaf to the tracer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.double(), self.weight).float()


@both
def test_a_module_that_is_called_twice_is_counted_twice(names: Any) -> None:
    program = sized(names, Shared(), torch.rand(4))
    _, result = partitioned(names, program, 1000)
    # The input, and twice the output and the parameters, of which one device holds one copy.
    assert [node.size_bytes for node in result.dag.nodes] == [16 + 2 * (16 + 80)]


@both
def test_buffers_are_not_counted(names: Any) -> None:
    program = sized(names, Normed(), torch.rand(2, 4))
    [norm] = operations(program)
    assert (norm.size_bytes.output_size, norm.size_bytes.total_size) == (32, 32)


@both
def test_parameters_count_at_the_width_of_the_output(names: Any) -> None:
    program = sized(names, Looked(), torch.rand(4))
    [cast] = operations(program)
    # The 16 elements of the weight are 128 bytes.
    assert cast.size_bytes.total_size - cast.size_bytes.output_size == 64


@both
def test_a_partition_holds_all_that_it_makes_to_its_end(names: Any) -> None:
    program = sized(names, nn.Sequential(*(nn.ReLU() for _ in range(9))), torch.rand(4))
    _, result = partitioned(names, program, 1000)
    # Two of 16 bytes would do.
    assert [node.size_bytes for node in result.dag.nodes] == [10 * 16]


def branches(names: Any) -> tuple[fx.GraphModule, list[Any]]:
    """Two sums of an input with a weight, each a partition."""
    graph, root = fx.Graph(), nn.Module()
    root.register_parameter("weight", nn.Parameter(torch.rand(4)))
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    first = graph.call_function(operator.add, (x, weight))
    graph.output((first, graph.call_function(operator.add, (first, weight))))
    program = sized_graph(names, fx.GraphModule(root, graph))
    partitions = [names.Partition(0), names.Partition(1)]
    for partition, node in zip(partitions, operations(program), strict=True):
        partition.add_node(node)
    names.reorganize_partitions(partitions)
    return program, partitions


def sized_graph(names: Any, program: fx.GraphModule) -> fx.GraphModule:
    names.get_size_of_all_nodes(program, [torch.rand(4)])
    return program


@both
def test_a_weight_that_two_partitions_read_passes_between_them(names: Any) -> None:
    program, partitions = branches(names)
    for device, partition in enumerate(partitions):
        partition.logical_device_ids = [device]
    seconds = dict.fromkeys(operations(program), names.NodeLatency(1.0, 1.0))
    inside = names.get_partition_to_latency_mapping(partitions, seconds)
    # A second each, and at 16 bytes a second one for the sum and one for the weight, which both devices hold.
    assert names.get_latency_of_partitioned_graph(partitions, inside, 16.0) == 4.0


@both
def test_partitions_of_one_device_run_at_the_same_time(names: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.relu, (x,)), graph.call_function(torch.neg, (x,))))
    program = sized_graph(names, fx.GraphModule(nn.Module(), graph))
    partitions = [names.Partition(0), names.Partition(1)]
    for partition, node in zip(partitions, operations(program), strict=True):
        partition.add_node(node)
        partition.logical_device_ids = [0]
    names.reorganize_partitions(partitions)
    seconds = dict.fromkeys(operations(program), names.NodeLatency(3.0, 1.0))
    inside = names.get_partition_to_latency_mapping(partitions, seconds)
    assert names.get_latency_of_partitioned_graph(partitions, inside, 16.0) == 3.0


@both
def test_parts_share_the_tensors_that_they_hand_on(names: Any) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total = x + 1
            return total, total.mul_(2)

    program = fx.symbolic_trace(Doubled())
    numbers = {node: index for index, node in enumerate(operations(program))}
    one, other = names.split_module(program, program, numbers.__getitem__)(torch.zeros(2))
    assert one.data_ptr() == other.data_ptr()
    assert one.tolist() == [2.0, 2.0]


@both
def test_regions_need_partitions_in_the_order_of_the_graph(names: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    first = graph.call_function(torch.relu, (x,))
    graph.output(graph.call_function(torch.neg, (first,)))
    program = fx.GraphModule(nn.Module(), graph)
    numbers = {node: 2 - index for index, node in enumerate(operations(program))}
    with pytest.raises(AssertionError, match="monotonically increasing"):
        names.split_module(program, program, numbers.__getitem__)
