"""The question that every algorithm here answers, in numbers only: which node goes to which stage, on which device.

Nodes stand in program order; a cut at position p parts node p - 1 from node p. Nothing here knows a graph. A node's
seconds are infinite on a device that cannot run it, or that it is kept from by `fixed_device`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.errors import GraphError, InventoryError, OptionsError
from planner.partition.check_problem import MAX_SECONDS, check_arrays, check_seconds_shape
from planner.partition.objective import USUAL_WEIGHT_SHARE, Activations, Training

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

FREE = -1
NO_SOURCE = -1

# Arrays whose last axis is the node, and those whose first is the device.
_BY_NODE = (
    "compute_seconds",
    "flops",
    "node_group",
    "is_embedding",
    "delivery_seconds",
    "fixed_device",
    "node_has_gradient",
    "node_spares_inputs",
    "node_spares_outputs",
    "node_kept_bytes",
    "node_backward_ratio",
    "node_split_ratio",
    "node_weight_share",
    "node_recomputable",
)
_BY_DEVICE = (
    "compute_seconds",
    "device_memory_bytes",
    "device_norm_rate",
    "device_update_rate",
    "delivery_seconds",
    "node_backward_ratio",
    "node_split_ratio",
    "node_weight_share",
)
_BY_PAIR_OF_DEVICES = ("link_latency_seconds", "link_seconds_per_byte", "link_handover_seconds")

# Sums of bytes, times every microbatch in flight, have to stay exact in a float64.
MAX_TOTAL_BYTES = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Names for messages, and the module paths that mode "cut" is asked for. Nothing else reads them."""

    nodes: tuple[str, ...]
    module_paths: tuple[str, ...]
    devices: tuple[str, ...]
    device_kinds: tuple[str, ...]


def _nothing() -> Integers:
    return np.zeros(0, dtype=np.int64)


def _no_flags() -> Booleans:
    return np.zeros(0, dtype=np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionProblem:
    """Arrays by node [n], value [v], storage root [r], state storage [s] and device [d].

    A value is a tensor or scalar that a node makes (`value_producer`) or that the graph takes (-1); states are apart.
    `value_root` indexes `root_bytes`: a root that is a state's storage has 0 bytes there. Reads are distinct (value,
    node) pairs in `read_value` and `read_node`, uses of states in `use_state` and `use_node`. A returned value is
    handed to the last stage. So is a returned state (`returned_state`), which counts as used by the last node:
    `use_is_return` where that node does not read it itself. Where a state's storage is a root, `shown_root` and
    `shown_node` are the nodes that read the state itself; n if the graph returns it. `cut_allowed` is [n + 1]; ends are
    True. `is_embedding` [n]: nodes that look rows up in a table.

    `compute_seconds` [d, n] are of the forward pass, infinite where a device cannot run a node: any stage that holds
    the node needs another device. `delivery_seconds` [d, n] are the part of them that the device spends on what clients
    hand in or are given; whoever runs the node again has no delivery again. `fixed_device` [n] is the only device that
    may run a node, or FREE.

    In training, `node_has_gradient` [n] says where a backward pass goes, `node_spares_inputs` and `node_spares_outputs`
    [n] where that needs nothing of what the node reads, or makes, `node_kept_bytes` [n] what it keeps besides, made
    within, `value_gradient_bytes` [v] what comes back for each value, `node_backward_ratio` [d, n] the time of a node's
    backward pass over its forward pass's (nan: that of the training), `node_split_ratio` [d, n] the same of a pass in
    two, as stages run it that give gradients back under a schedule that splits (nan: as a whole one),
    `node_weight_share` [d, n] what weights take of that (nan: half), `state_gradient_bytes` and `state_optimizer_bytes`
    [s] what a trained state holds besides itself, `device_norm_rate` and `device_update_rate` [d] at how many bytes per
    second a device reads norms of gradients, and updates states. `link_handover_seconds` [d, d] is how long the sender
    of a message is at it before a receiver that waits can begin.
    Arrays that are left out say: no gradient, nothing fixed, nothing recomputable, deliveries, updates and handovers
    cost nothing.

    `node_recomputable` [n]: reads no parameter and gives the same wherever it runs, so that a later stage may run it
    again instead of receiving what it makes. `value_source` [v]: the value that it is a view of, one step back; -1 for
    none, or a state.
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
    use_is_return: Booleans
    returned_state: Integers
    shown_root: Integers
    shown_node: Integers
    cut_allowed: Booleans
    node_group: Integers
    is_embedding: Booleans
    device_memory_bytes: Integers
    link_latency_seconds: Floats
    link_seconds_per_byte: Floats
    relay: bool
    microbatches_in_flight: int
    labels: Labels
    delivery_seconds: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    fixed_device: Integers = field(default_factory=_nothing)
    training: Training | None = None
    node_has_gradient: Booleans = field(default_factory=_no_flags)
    node_spares_inputs: Booleans = field(default_factory=_no_flags)
    node_spares_outputs: Booleans = field(default_factory=_no_flags)
    node_kept_bytes: Integers = field(default_factory=_nothing)
    node_backward_ratio: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    node_split_ratio: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    node_weight_share: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    value_gradient_bytes: Integers = field(default_factory=_nothing)
    state_gradient_bytes: Integers = field(default_factory=_nothing)
    state_optimizer_bytes: Integers = field(default_factory=_nothing)
    node_recomputable: Booleans = field(default_factory=_no_flags)
    value_source: Integers = field(default_factory=_nothing)
    device_norm_rate: Floats = field(default_factory=lambda: np.zeros(0))
    device_update_rate: Floats = field(default_factory=lambda: np.zeros(0))
    link_handover_seconds: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def __post_init__(self) -> None:
        check_seconds_shape(self.compute_seconds)
        if self.num_nodes == 0:
            raise GraphError("the graph has no nodes; there is nothing to plan")
        if self.num_devices == 0:
            raise InventoryError("the inventory has no devices; give at least one")
        check_arrays(self)
        self._fill_in()
        self._check_seconds()
        if any(sizes.size and int(sizes.min()) < 0 for sizes in (self.value_bytes, self.state_bytes, self.root_bytes)):
            raise GraphError("a value or a state has fewer than 0 bytes")
        total = sum(float(sizes.sum(dtype=np.float64)) for sizes in (self.value_bytes, self.state_bytes))
        in_training = (self.state_gradient_bytes, self.state_optimizer_bytes, self.node_kept_bytes)
        total += sum(float(sizes.sum(dtype=np.float64)) for sizes in in_training)
        in_flight = self.microbatches_in_flight + (self.training.microbatches if self.training else 0)
        if total * (in_flight + 2) > MAX_TOTAL_BYTES:
            raise GraphError(
                f"all values and states, and what backward passes keep, take {total:.3g} bytes, {in_flight} "
                f"microbatches in flight; at most 2^53 bytes can be planned: check the dimensions, and measurements"
            )

    def with_nodes(self, nodes: Integers, **changes: Any) -> PartitionProblem:
        """The problem of these nodes, in their order; one may stand twice. What names nodes by their index is the
        caller's to change (`value_producer`, `read_node`, ...), and `cut_allowed`, which is by position."""
        fields = {name: getattr(self, name)[..., nodes] for name in _BY_NODE}
        labels, chosen_nodes = self.labels, nodes.tolist()
        fields["labels"] = replace(
            labels,
            nodes=tuple(labels.nodes[node] for node in chosen_nodes),
            module_paths=tuple(labels.module_paths[node] for node in chosen_nodes),
        )
        return replace(self, **(fields | changes))

    def with_devices(self, devices: Integers, **changes: Any) -> PartitionProblem:
        """The same on these devices, in their order. All that nodes are fixed to are among them; of a device that
        stands twice the first has these."""
        fields = {name: getattr(self, name)[devices] for name in _BY_DEVICE}
        fields |= {name: getattr(self, name)[np.ix_(devices, devices)] for name in _BY_PAIR_OF_DEVICES}
        place = np.full(self.num_devices, FREE)
        place[devices[::-1]] = np.arange(devices.size)[::-1]
        fields["fixed_device"] = moved(self.fixed_device, place)
        labels, chosen_devices = self.labels, devices.tolist()
        fields["labels"] = replace(
            labels,
            devices=tuple(labels.devices[device] for device in chosen_devices),
            device_kinds=tuple(labels.device_kinds[device] for device in chosen_devices),
        )
        return replace(self, **(fields | changes))

    def _fill_in(self) -> None:
        """Arrays that were left out get their size; nodes that are fixed get infinite seconds everywhere else."""
        sizes = {
            "fixed_device": (self.num_nodes, FREE),
            "node_has_gradient": (self.num_nodes, False),
            "node_spares_inputs": (self.num_nodes, False),
            "node_spares_outputs": (self.num_nodes, False),
            "node_kept_bytes": (self.num_nodes, 0),
            "node_recomputable": (self.num_nodes, False),
            "value_source": (self.num_values, NO_SOURCE),
            "value_gradient_bytes": (self.num_values, 0),
            "state_gradient_bytes": (self.state_bytes.size, 0),
            "state_optimizer_bytes": (self.state_bytes.size, 0),
        }
        for name, (size, content) in sizes.items():
            entries = getattr(self, name)
            if not entries.size:
                object.__setattr__(self, name, np.full(size, content, dtype=entries.dtype))
        # By device and node, of many of which a number each is a lot of memory: one number, seen at every place.
        for name in ("node_backward_ratio", "node_split_ratio", "node_weight_share"):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.broadcast_to(np.nan, self.compute_seconds.shape))
        for name in ("device_norm_rate", "device_update_rate"):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.full(self.num_devices, np.inf))
        if not self.link_handover_seconds.size:
            object.__setattr__(self, "link_handover_seconds", np.zeros_like(self.link_latency_seconds))
        if not self.delivery_seconds.size:
            object.__setattr__(self, "delivery_seconds", np.broadcast_to(0.0, self.compute_seconds.shape))
        fixed = np.flatnonzero(self.fixed_device != FREE)
        if fixed.size:
            seconds = self.compute_seconds.copy()
            own = seconds[self.fixed_device[fixed], fixed]
            seconds[:, fixed] = np.inf
            seconds[self.fixed_device[fixed], fixed] = own
            object.__setattr__(self, "compute_seconds", seconds)

    def _check_seconds(self) -> None:
        seconds = self.compute_seconds
        bad = np.argwhere(~(seconds >= 0) | ((seconds > MAX_SECONDS) & np.isfinite(seconds)))
        if bad.size:
            device, node = (int(index) for index in bad[0])
            cost = self.compute_seconds[device, node]
            name = f"{self._node_name(node)} on device {self.labels.devices[device]!r}"
            raise GraphError(
                f"{name} costs {cost} seconds, needs a finite number from 0 to {MAX_SECONDS:g}, or inf where it "
                f"cannot run"
            )
        nowhere = np.flatnonzero(np.isinf(self.compute_seconds).all(axis=0))
        if not nowhere.size:
            return
        node = int(nowhere[0])
        device = int(self.fixed_device[node])
        if device != FREE:
            raise OptionsError(
                f"{self._node_name(node)} is fixed to device {self.labels.devices[device]!r}, which cannot run it",
                node=self.labels.nodes[node],
                device=self.labels.devices[device],
            )
        names = " and on device ".join(map(repr, self.labels.devices[:10]))
        raise GraphError(
            f"{self._node_name(node)} on device {names} costs inf seconds: no device can run it; give a time for one "
            f"of their kinds, or add a device that can",
            node=self.labels.nodes[node],
        )

    def _node_name(self, node: int) -> str:
        return f"node {node} ({self.labels.nodes[node]!r})"

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
    def node_arcs(self) -> tuple[Integers, Integers]:
        """(makers, readers) of each read of a value that a node makes."""
        makers = self.value_producer[self.read_value]
        return makers[makers >= 0], self.read_node[makers >= 0]

    @cached_property
    def value_last_read(self) -> Integers:
        """Position of each value's last reader; -1 if none, n if the graph returns it."""
        last = np.full(self.num_values, -1, dtype=np.int64)
        np.maximum.at(last, self.read_value, self.read_node)
        last[self.value_returned] = self.num_nodes
        return last

    @cached_property
    def has_deliveries(self) -> bool:
        """Whether any node's inputs come from clients, or its results go to them, in some time."""
        return bool(self.delivery_seconds.any())

    @cached_property
    def root_accesses(self) -> tuple[Integers, Integers]:
        """(nodes, roots): which nodes read, make or show which storage roots, some more than once."""
        made, shown = np.flatnonzero(self.value_producer >= 0), self.shown_node < self.num_nodes
        nodes = np.concatenate([self.read_node, self.value_producer[made], self.shown_node[shown]])
        roots = [self.value_root[self.read_value], self.value_root[made], self.shown_root[shown]]
        return nodes, np.concatenate(roots)

    @cached_property
    def made_roots(self) -> Integers:
        """Storage roots that nodes make."""
        return np.flatnonzero(self.root_producer >= 0)

    @cached_property
    def root_last_access(self) -> Integers:
        """Position of the last access to each storage root, by whichever of its values; n if one is returned."""
        last = np.full(self.root_bytes.size, -1, dtype=np.int64)
        np.maximum.at(last, self.value_root, np.maximum(self.value_producer, self.value_last_read))
        np.maximum.at(last, self.shown_root, self.shown_node)
        return last

    @property
    def recomputes_activations(self) -> bool:
        """Whether stages compute their activations again, but for those that an assignment says keep them."""
        return self.training is not None and self.training.activations is not Activations.KEPT

    @cached_property
    def backward_ratio(self) -> Floats:
        """[d, n] seconds of a node's backward pass over those of its forward pass, where one goes through it."""
        usual = self.training.backward_ratio if self.training else 0.0
        return np.where(np.isnan(self.node_backward_ratio), usual, self.node_backward_ratio)

    @cached_property
    def split_ratio(self) -> Floats:
        """[d, n] the same where the pass is in two."""
        return np.where(np.isnan(self.node_split_ratio), self.backward_ratio, self.node_split_ratio)

    @cached_property
    def least_backward_ratio(self) -> Floats:
        """[d, n] whichever stage a node is in: the first ones give no gradient back, and split nothing."""
        return np.minimum(self.backward_ratio, self.split_ratio)

    def backward_seconds(self, *, recomputed: bool, is_split: bool = False) -> Floats:
        """[d, n] seconds of the backward pass, with or without a forward pass before it; infinite where that is."""
        if (recomputed, is_split) not in self._backward:
            self._backward[recomputed, is_split] = self._backward_seconds(recomputed, is_split)
        return self._backward[recomputed, is_split]

    @cached_property
    def _backward(self) -> dict[tuple[bool, bool], Floats]:
        return {}

    def _backward_seconds(self, recomputed: bool, is_split: bool) -> Floats:
        if self.training is None:
            return np.zeros_like(self.compute_seconds)
        ratio = self.split_ratio if is_split else self.backward_ratio
        return self._times(np.where(self.node_has_gradient, ratio + recomputed, 0.0))

    @cached_property
    def weight_seconds(self) -> Floats:
        """[d, n] seconds of a backward pass in two that weights' gradients take."""
        share = np.where(np.isnan(self.node_weight_share), USUAL_WEIGHT_SHARE, self.node_weight_share)
        return self._times(np.where(self.node_has_gradient, self.split_ratio * share, 0.0))

    @cached_property
    def work_seconds(self) -> Floats:
        """[d, n] seconds that a device gives a node for each microbatch at least: forward, and backward in training."""
        if self.training is None:
            return self.compute_seconds
        passes = 1.0 + self.least_backward_ratio + self.recomputes_activations
        return self._times(np.where(self.node_has_gradient, passes, 1.0)) + self.delivery_seconds

    @cached_property
    def pass_seconds(self) -> Floats:
        """[d, n] seconds of the forward pass alone, without deliveries."""
        return self.compute_seconds - self.delivery_seconds

    def _times(self, factor: Floats) -> Floats:
        return np.where(np.isinf(self.compute_seconds), np.inf, self._finite_seconds * factor)

    @cached_property
    def _finite_seconds(self) -> Floats:
        return np.where(np.isinf(self.compute_seconds), 0.0, self.pass_seconds)

    @cached_property
    def compute_before(self) -> Floats:
        """[d, n + 1]: `work_seconds` of all nodes before each position, but 0 for those that the device cannot run."""
        before = np.zeros((self.num_devices, self.num_nodes + 1))
        np.cumsum(np.where(np.isinf(self.work_seconds), 0.0, self.work_seconds), axis=1, out=before[:, 1:])
        return before

    @cached_property
    def some_are_barred(self) -> bool:
        """Whether any device cannot run some node."""
        return bool(np.isinf(self.compute_seconds).any())

    @cached_property
    def barred_before(self) -> Integers:
        """[d, n + 1]: how many of the nodes before each position the device cannot run."""
        before = np.zeros((self.num_devices, self.num_nodes + 1), dtype=np.int64)
        np.cumsum(np.isinf(self.compute_seconds), axis=1, out=before[:, 1:])
        return before

    def segment_seconds(self, devices: Integers, starts: Integers, ends: Integers) -> Floats:
        """Work of nodes [start, end) on devices, broadcast; inf where the device cannot run one of them."""
        seconds: Floats = self.compute_before[devices, ends] - self.compute_before[devices, starts]
        if self.some_are_barred:
            barred = self.barred_before[devices, ends] > self.barred_before[devices, starts]
            seconds = np.where(barred, np.inf, seconds)
        return seconds

    @cached_property
    def root_saved_bytes(self) -> Integers:
        """[r] bytes that the backward pass keeps of each storage: all, if that of a node that makes or reads it needs
        it."""
        saved = np.zeros(self.root_bytes.size, dtype=np.bool_)
        needs_inputs = self.node_has_gradient & ~self.node_spares_inputs
        needs_outputs = self.node_has_gradient & ~self.node_spares_outputs
        saved[self.value_root[self.read_value[needs_inputs[self.read_node]]]] = True
        outputs = np.flatnonzero(self.value_producer >= 0)
        saved[self.value_root[outputs[needs_outputs[self.value_producer[outputs]]]]] = True
        return np.where(saved, self.root_bytes, 0)

    @cached_property
    def best_latency_seconds(self) -> Floats:
        """[d + 1, d + 1]: the links; index -1 is a device that is not known, over the best link that there could be."""
        return _with_unknown(self.link_latency_seconds)

    @cached_property
    def best_seconds_per_byte(self) -> Floats:
        """[d + 1, d + 1], as the latency."""
        return _with_unknown(self.link_seconds_per_byte)

    @cached_property
    def whole_state_bytes(self) -> Integers:
        """[s] with its gradient and what the optimizer keeps for it."""
        return self.state_bytes + self.state_gradient_bytes + self.state_optimizer_bytes

    def transfer_seconds(self, source: int, target: int, size_bytes: int) -> float:
        """0 on one device."""
        if source == target:
            return 0.0
        return float(
            self.link_latency_seconds[source, target] + size_bytes * self.link_seconds_per_byte[source, target]
        )


def moved(indices: Integers, place: Integers) -> Integers:
    """Where each now stands; -1, which is nowhere, stays."""
    return np.where(indices >= 0, place[indices], -1)


def _with_unknown(links: Floats) -> Floats:
    size = links.shape[0]
    wider = np.zeros((size + 1, size + 1))
    wider[:size, :size] = links
    if size > 1:
        others = np.where(np.eye(size, dtype=np.bool_), np.inf, links)
        wider[-1, :size], wider[:size, -1] = others.min(axis=0), others.min(axis=1)
    return wider
