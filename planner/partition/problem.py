"""The question that every algorithm here answers, in numbers only: which node goes to which stage, on which device.

Nodes stand in program order; a cut at position p parts node p - 1 from node p. Nothing here knows a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner.errors import GraphError, InventoryError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

# Sums of bytes, times every microbatch in flight, have to stay exact in a float64.
MAX_TOTAL_BYTES = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Names for messages, and the module paths that mode "cut" is asked for. Nothing else reads them."""

    nodes: tuple[str, ...]
    module_paths: tuple[str, ...]
    devices: tuple[str, ...]
    device_kinds: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionProblem:
    """Arrays by node [n], value [v], storage root [r], state storage [s] and device [d].

    A value is a tensor or scalar that a node makes (`value_producer`) or that the graph takes (-1); states are apart.
    `value_root` indexes `root_bytes`: a root that is a state's storage has 0 bytes there. Reads are distinct (value,
    node) pairs in `read_value` and `read_node`, uses of states in `use_state` and `use_node`. A returned value
    is handed to the last stage. Where a state's storage is a root, `shown_root` and `shown_node` are the nodes that
    read the state itself; n if the graph returns it. `cut_allowed` is [n + 1]; ends are True.
    """

    compute_seconds: Floats
    flops: Floats
    value_bytes: Integers
    value_producer: Integers
    value_root: Integers
    value_returned: Booleans
    root_bytes: Integers
    root_producer: Integers
    read_value: Integers
    read_node: Integers
    state_bytes: Integers
    use_state: Integers
    use_node: Integers
    shown_root: Integers
    shown_node: Integers
    cut_allowed: Booleans
    node_group: Integers
    device_memory_bytes: Integers
    link_latency_seconds: Floats
    link_seconds_per_byte: Floats
    relay: bool
    microbatches_in_flight: int
    labels: Labels

    def __post_init__(self) -> None:
        if self.num_nodes == 0:
            raise GraphError("the graph has no nodes; there is nothing to plan")
        if self.num_devices == 0:
            raise InventoryError("the inventory has no devices; give at least one")
        bad = np.argwhere(~(np.isfinite(self.compute_seconds) & (self.compute_seconds >= 0)))
        if bad.size:
            device, node = (int(index) for index in bad[0])
            found = self.compute_seconds[device, node]
            name = f"node {node} ({self.labels.nodes[node]!r}) on device {self.labels.devices[device]!r}"
            raise GraphError(f"{name} costs {found} seconds, needs a finite number from 0")
        if any(sizes.size and int(sizes.min()) < 0 for sizes in (self.value_bytes, self.state_bytes, self.root_bytes)):
            raise GraphError("a value or a state has fewer than 0 bytes")
        total = sum(float(sizes.sum(dtype=np.float64)) for sizes in (self.value_bytes, self.state_bytes))
        if total * (self.microbatches_in_flight + 2) > MAX_TOTAL_BYTES:
            raise GraphError(
                f"all values and states take {total:.3g} bytes, {self.microbatches_in_flight} microbatches in flight; "
                f"at most 2^53 bytes can be planned: check the dimensions"
            )

    @property
    def num_nodes(self) -> int:
        return int(self.compute_seconds.shape[1])

    @property
    def num_devices(self) -> int:
        return int(self.compute_seconds.shape[0])

    @property
    def num_values(self) -> int:
        return int(self.value_bytes.size)

    @cached_property
    def value_last_read(self) -> Integers:
        """Position of each value's last reader; -1 if none, n if the graph returns it."""
        last = np.full(self.num_values, -1, dtype=np.int64)
        np.maximum.at(last, self.read_value, self.read_node)
        last[self.value_returned] = self.num_nodes
        return last

    @cached_property
    def root_last_access(self) -> Integers:
        """Position of the last access to each storage root, by whichever of its values; n if one is returned."""
        last = np.full(self.root_bytes.size, -1, dtype=np.int64)
        np.maximum.at(last, self.value_root, np.maximum(self.value_producer, self.value_last_read))
        np.maximum.at(last, self.shown_root, self.shown_node)
        return last

    @cached_property
    def compute_before(self) -> Floats:
        """[d, n + 1]: seconds of all nodes before each position."""
        before = np.zeros((self.num_devices, self.num_nodes + 1))
        np.cumsum(self.compute_seconds, axis=1, out=before[:, 1:])
        return before

    @cached_property
    def best_latency_seconds(self) -> Floats:
        """[d + 1, d + 1]: the links; index -1 is a device that is not known, over the best link that there could be."""
        return _with_unknown(self.link_latency_seconds)

    @cached_property
    def best_seconds_per_byte(self) -> Floats:
        """[d + 1, d + 1], as the latency."""
        return _with_unknown(self.link_seconds_per_byte)

    def transfer_seconds(self, source: int, target: int, size_bytes: int) -> float:
        """0 on one device."""
        if source == target:
            return 0.0
        return float(
            self.link_latency_seconds[source, target] + size_bytes * self.link_seconds_per_byte[source, target]
        )


def _with_unknown(links: Floats) -> Floats:
    size = links.shape[0]
    wider = np.zeros((size + 1, size + 1))
    wider[:size, :size] = links
    if size > 1:
        others = np.where(np.eye(size, dtype=np.bool_), np.inf, links)
        wider[-1, :size], wider[:size, -1] = others.min(axis=0), others.min(axis=1)
    return wider
