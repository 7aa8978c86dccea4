"""How torch.fx's partitioner is asked: names, fields and defaults as in torch.fx.experimental.partitioner_utils."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from torch.fx import Node

from planner.fx_compat.partitioning.errors import UnknownMode


class Device(NamedTuple):
    name: str
    available_mem_bytes: int
    logical_id: int


class NodeLatency(NamedTuple):
    """Seconds that moving bytes, and that computing, would take alone."""

    mem_latency_sec: float
    computer_latency_sec: float


class PartitionLatency(NamedTuple):
    """Of the longest path in a partition; `overall_latency_sec` sums each node's slower part."""

    mem_latency_sec: float
    computer_latency_sec: float
    overall_latency_sec: float


class PartitionMode(Enum):
    size_based = 0
    sparse_nn = 1
    cost_aware = 2
    kl_based = 3
    aot_based = 4


class PartitionerConfig(NamedTuple):
    """cost_aware and kl_based read the rate and the latencies, aot_based the two mappings.

    With `saturate_host`, idle devices run copies of all partitions, as far as they suffice.
    """

    devices: list[Device]
    mode: PartitionMode = PartitionMode.size_based
    transfer_rate_bytes_per_sec: float = 0.0
    node_to_latency_mapping: Mapping[Node, NodeLatency] = MappingProxyType({})
    node_to_partition_mapping: Mapping[Node, int] = MappingProxyType({})
    partition_to_logical_device_mapping: Mapping[int, list[int]] = MappingProxyType({})
    saturate_host: bool = False


def own_config(config: PartitionerConfig) -> PartitionerConfig:
    """Ours for torch.fx's, whose modes are another enumeration of the same names and numbers.

    Raises UnknownMode for a mode that is neither's.
    """
    return PartitionerConfig(**{**config._asdict(), "mode": _known_mode(config.mode)})


def _known_mode(mode: object) -> PartitionMode:
    own = PartitionMode.__members__.get(mode.name) if isinstance(mode, Enum) else None
    if own is None or own.value != mode.value:  # type: ignore[attr-defined]
        raise UnknownMode(
            f"mode {mode!r} is none of PartitionMode's: {', '.join(PartitionMode.__members__)}; "
            f"set `mode` of the PartitionerConfig to one of them"
        )
    return own
