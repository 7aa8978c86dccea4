"""Modes cost_aware and kl_based, and split_module, beside torch.fx's own, on programs like a transformer's layers.

    python -m benchmarks.compare_torch_partitioner [--modes kl_based,split] [--operations 20,40,60] [--devices 4]

Seconds are of the CPU, for partition_graph whole with the split; "modules" is torch's time for the split of our
partitions alone, which no search can save. Latencies are what torch's model predicts for a lone batch. torch takes
about a minute for cost_aware on 80 operations.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import fx
from torch.fx.experimental import accelerator_partitioner, partitioner_utils
from torch.fx.passes.split_module import split_module as torchs_split

from planner.fx_compat import partitioner as ours
from planner.fx_compat.partitioning.sizes import get_size_of_all_nodes
from planner.fx_compat.split_module import split_module as ours_split
from tests.builders.fx_programs import operations, total_bytes, transformer_program

BYTES_PER_SECOND = 4.0
# Of the program's bytes, what one device holds.
ROOM = 0.45
# Of which the quickest counts.
_REPEATS = 7


class Torchs:
    Partitioner = accelerator_partitioner.Partitioner
    Device = partitioner_utils.Device
    PartitionMode = partitioner_utils.PartitionMode
    PartitionerConfig = partitioner_utils.PartitionerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", default="20,40,60", help="numbers of operations, with commas")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--modes", default="cost_aware,kl_based,split", help="with commas")
    arguments = parser.parse_args()
    counts, modes = [int(count) for count in arguments.operations.split(",")], arguments.modes.split(",")
    torch.set_num_threads(1)
    if searches := [mode for mode in modes if mode != "split"]:
        compare_modes(counts, searches, arguments.devices)
    if "split" in modes:
        compare_splits(counts)


def compare_modes(counts: Sequence[int], modes: Sequence[str], num_devices: int) -> None:
    # Tables of operators are read once.
    _timed(ours, transformer_program(20)[0], "cost_aware", num_devices)
    header = ("mode", "operations", "torch s", "ours s", "ratio", "modules s", "torch latency", "ours", "ratio")
    print(("{:>14}" * len(header)).format(*header))
    for count in counts:
        module, inputs = transformer_program(count)
        for mode in modes:
            theirs, torchs_seconds = _timed(Torchs, module, mode, num_devices)
            answer, seconds = min((_timed(ours, module, mode, num_devices) for _ in range(_REPEATS)), key=itemgetter(1))
            get_size_of_all_nodes(module, inputs)
            latencies = _latency(module, theirs), _latency(module, answer)
            modules = _split_seconds(torchs_split, module, answer.node_to_partition)
            row = (mode, len(operations(module)), torchs_seconds, seconds, torchs_seconds / seconds, modules)
            print("{:>14}{:>14}{:>14.3f}{:>14.4f}{:>14.0f}{:>14.4f}".format(*row), end="")
            print("{:>14.1f}{:>14.1f}{:>14.4f}".format(*latencies, latencies[1] / latencies[0]), flush=True)


def compare_splits(counts: Sequence[int]) -> None:
    header = ("operations", "partitions", "torch s", "ours s", "ratio")
    print(("{:>14}" * len(header)).format(*header))
    for count in counts:
        module, _ = transformer_program(count)
        nodes = operations(module)
        for parts in (4, len(nodes) // 4):
            partition_of = {node: index * parts // len(nodes) for index, node in enumerate(nodes)}
            # In turns, so that both meet the same machine.
            pairs = [
                (_split_seconds(torchs_split, module, partition_of), _split_seconds(ours_split, module, partition_of))
                for _ in range(_REPEATS)
            ]
            theirs, own = (min(seconds) for seconds in zip(*pairs, strict=True))
            row = (len(nodes), parts, theirs, own, own / theirs)
            print("{:>14}{:>14}{:>14.4f}{:>14.4f}{:>14.2f}".format(*row), flush=True)


def _split_seconds(
    split: Callable[..., fx.GraphModule], module: fx.GraphModule, partition_of: Mapping[fx.Node, int]
) -> float:
    start = time.process_time()
    split(module, module, partition_of.__getitem__)
    return time.process_time() - start


def _timed(names: Any, module: fx.GraphModule, mode: str, num_devices: int) -> tuple[Any, float]:
    devices = [names.Device(f"d{index}", int(total_bytes(module) * ROOM), index) for index in range(num_devices)]
    config = names.PartitionerConfig(devices, names.PartitionMode[mode], BYTES_PER_SECOND, _latencies(module))
    partitioner = names.Partitioner()
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        partitioner.partition_graph(module, module, config)
    return partitioner, time.process_time() - start


def _latencies(module: fx.GraphModule) -> Mapping[fx.Node, ours.NodeLatency]:
    sizes = {node: node.size_bytes for node in operations(module)}
    return {node: ours.NodeLatency(size.total_size, 1.5 * size.output_size) for node, size in sizes.items()}


def _latency(module: fx.GraphModule, partitioner: Any) -> float:
    """Of either's partitions, by our functions: torch's would look at every path."""
    same: list[ours.Partition] = []
    for partition in _partitions(partitioner):
        same.append(ours.Partition(len(same)))
        same[-1].nodes = set(partition.nodes)
        same[-1].logical_device_ids = list(partition.logical_device_ids)
    ours.set_parents_and_children(same)
    inside = ours.get_partition_to_latency_mapping(same, _latencies(module))
    return ours.get_latency_of_partitioned_graph(same, inside, BYTES_PER_SECOND)


def _partitions(partitioner: Any) -> Sequence[Any]:
    partitions: Sequence[Any] = partitioner.partitions
    return partitions


if __name__ == "__main__":
    main()
