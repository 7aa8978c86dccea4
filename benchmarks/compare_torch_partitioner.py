"""Modes cost_aware and kl_based beside torch.fx's own partitioner, on programs like a transformer's layers.

    python -m benchmarks.compare_torch_partitioner [--operations 20,40,60] [--devices 4]

Seconds are of the CPU, for partition_graph whole with the split; latencies are what torch's
model predicts for a lone batch. torch takes about a minute for cost_aware on 80 operations.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental import accelerator_partitioner, partitioner_utils

from planner.fx_compat import partitioner as ours
from planner.fx_compat.partitioning.sizes import get_size_of_all_nodes
from tests.builders.fx_programs import operations, total_bytes, transformer_program

BYTES_PER_SECOND = 4.0
# Of the program's bytes, what one device holds.
ROOM = 0.45


class Torchs:
    Partitioner = accelerator_partitioner.Partitioner
    Device = partitioner_utils.Device
    PartitionMode = partitioner_utils.PartitionMode
    PartitionerConfig = partitioner_utils.PartitionerConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", default="20,40,60", help="numbers of operations, with commas")
    parser.add_argument("--devices", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # Tables of operators are read once.
    _timed(ours, transformer_program(20)[0], "cost_aware", given.devices)
    header = ("mode", "operations", "torch s", "ours s", "ratio", "torch latency", "ours", "ratio")
    print(("{:>12}" * len(header)).format(*header))
    for count in map(int, given.operations.split(",")):
        module, inputs = transformer_program(count)
        for mode in ("cost_aware", "kl_based"):
            theirs, torchs_seconds = _timed(Torchs, module, mode, given.devices)
            found, seconds = _timed(ours, module, mode, given.devices)
            get_size_of_all_nodes(module, inputs)
            latencies = _latency(module, theirs), _latency(module, found)
            row = (mode, len(operations(module)), torchs_seconds, seconds, torchs_seconds / seconds)
            print("{:>12}{:>12}{:>12.3f}{:>12.4f}{:>12.0f}".format(*row), end="")
            print("{:>12.1f}{:>12.1f}{:>12.4f}".format(*latencies, latencies[1] / latencies[0]), flush=True)


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
