"""A partition plan: which stage runs where, what is live between stages, and what that is predicted to cost.

Plain records; `planner.plan.verify` re-derives everything that must hold of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.inventory import Inventory, LinkSpeed
from planner.cost.messages import handover_between, link_between
from planner.cost.sources import CostSource
from planner.graph.expression import Expression
from planner.graph.ir import Dtype, ValueKind
from planner.partition.objective import USUAL_WEIGHT_SHARE, Objective
from planner.partition.training.pipeline_order import Step
from planner.plan.options import PlanOptions

# LiveTensor.producer_stage of an input of the graph.
GRAPH_INPUT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
    """A value that is live on entry to a stage: read there (`consumed`), or later (`bypassing`), or both.

    Order in a liveness table: graph inputs first, in signature order, then by producing node.
    """

    value_id: int
    name: str
    kind: ValueKind
    dtype: Dtype | None
    dims: tuple[Expression, ...]
    size_bytes: int
    producer_stage: int
    consumed: bool
    bypassing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak bytes of a stage on each of its devices: `buffer_bytes` counts every microbatch in flight.

    In training, `saved_bytes` is what every microbatch in flight keeps for its backward pass. Where activations are
    computed again, for one microbatch at a time, `activation_bytes` has them.
    """

    state_bytes: int
    activation_bytes: int
    buffer_bytes: int
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        state_like_bytes = self.state_bytes + self.gradient_bytes + self.optimizer_bytes
        return state_like_bytes + self.activation_bytes + self.buffer_bytes + self.saved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`node_ranges` are half-open index ranges into Graph.nodes, ascending and disjoint.

    `first_module` and `last_module` are where its program begins and ends; empty where it runs outside of every module.
    `recomputed_ranges` are nodes of earlier stages that it runs again rather than receive what they make. With several
    devices, each takes its share of the microbatches: `compute_seconds` is of one microbatch on the slowest of them.
    `recomputes_activations`: each backward pass begins with one more forward pass, and `backward_seconds` has both.
    `delivery_seconds`: of taking a microbatch's inputs from a client and handing its outputs to one, where it does.
    `weight_share`: of `backward_seconds`, what weights' gradients take where the schedule splits backward passes.
    """

    index: int
    node_ranges: tuple[tuple[int, int], ...]
    device_ids: tuple[str, ...]
    states: tuple[str, ...]
    liveness: tuple[LiveTensor, ...]
    outputs: tuple[int, ...]
    compute_seconds: float
    communication_seconds: float
    flops: float
    memory: StageMemory
    reason: str
    first_module: str = ""
    last_module: str = ""
    backward_seconds: float = 0.0
    recomputed_ranges: tuple[tuple[int, int], ...] = ()
    recomputes_activations: bool = False
    delivery_seconds: float = 0.0
    weight_share: float = USUAL_WEIGHT_SHARE

    @property
    def forward_seconds(self) -> float:
        return self.compute_seconds + self.delivery_seconds

    @property
    def weight_gradient_seconds(self) -> float:
        return self.backward_seconds * self.weight_share

    @property
    def input_gradient_seconds(self) -> float:
        return self.backward_seconds - self.weight_gradient_seconds

    @property
    def load_seconds(self) -> float:
        """Of one microbatch, on the slowest of its devices."""
        return self.forward_seconds + self.backward_seconds + self.communication_seconds

    def node_indexes(self) -> tuple[int, ...]:
        return tuple(index for start, end in self.node_ranges for index in range(start, end))

    @property
    def num_nodes(self) -> int:
        return sum(end - start for start, end in self.node_ranges)

    @property
    def num_recomputed_nodes(self) -> int:
        return sum(end - start for start, end in self.recomputed_ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """`value_ids` in the order that they are sent. In training, `gradient_value_ids` are those of them whose gradients
    come back, in the same order."""

    source_stage: int
    target_stage: int
    value_ids: tuple[int, ...]
    size_bytes: int
    gradient_value_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """The passes of one device in a training step, in order."""

    device_id: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TieGroup:
    """States that share storage and that more than one stage holds: (state name, stage index) of each.

    `requires_grad`: if trained, their gradients are summed.
    """

    id: int
    members: tuple[tuple[str, int], ...]
    size_bytes: int
    requires_grad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`bottleneck_seconds` is the time between results in a steady stream; `latency_seconds` a lone batch's.

    `step_seconds` is a training step's, None in inference. `lower_bound_seconds` is of the objective asked for.
    `cost_sources` says where the seconds of each kind of device come from. `pass_orders`: of a training step under the
    best order that was found; empty where the schedule has a rule.
    """

    graph_id: str
    graph_name: str
    num_nodes: int
    options: PlanOptions
    inventory: Inventory
    stages: tuple[Stage, ...]
    edges: tuple[StageEdge, ...]
    tie_groups: tuple[TieGroup, ...]
    bottleneck_seconds: float
    latency_seconds: float
    lower_bound_seconds: float | None
    symbol_values: tuple[tuple[str, int], ...]
    step_seconds: float | None = None
    cost_sources: tuple[CostSource, ...] = ()
    pass_orders: tuple[PassOrder, ...] = ()

    def link(self, source_id: str, target_id: str) -> LinkSpeed:
        """What a message between two devices was planned to take."""
        return link_between(self.inventory, self.cost_sources, source_id, target_id)

    def handover_seconds(self, source_id: str, target_id: str) -> float:
        """How long the sender of a message is at it before a device that waits for it can begin."""
        return handover_between(self.inventory, self.cost_sources, source_id, target_id)

    @property
    def device_peak_bytes(self) -> dict[str, int]:
        """By device id, all stages that it runs; 0 for a device that runs none."""
        peaks = dict.fromkeys((device.id for device in self.inventory.devices), 0)
        for stage in self.stages:
            for device_id in stage.device_ids:
                peaks[device_id] += stage.memory.peak_bytes
        return peaks

    @property
    def shares_of_cores(self) -> tuple[str, ...]:
        """A sentence for each host whose cores several CPUs in use divide: their stages' seconds are of such shares."""
        used = {device_id for stage in self.stages for device_id in stage.device_ids}
        hosts: dict[str, list[str]] = {}
        for device in self.inventory.devices:
            if device.shares_cores and device.id in used:
                hosts.setdefault(device.host, []).append(device.id)
        return tuple(
            f"{', '.join(devices)} divide the cores of {host}: each computes with 1/{len(devices)} of them"
            for host, devices in hosts.items()
            if len(devices) > 1
        )

    @property
    def objective_value(self) -> float:
        """Of the objective asked for: seconds, or for memory the fullest device's share."""
        objective = self.options.objective
        if objective is Objective.MEMORY:
            memory = {device.id: device.memory_bytes for device in self.inventory.devices}
            return max(peak / memory[device_id] for device_id, peak in self.device_peak_bytes.items())
        if objective is Objective.STEP_TIME:
            assert self.step_seconds is not None, "step time of a plan without training"
            return self.step_seconds
        return self.bottleneck_seconds if objective is Objective.THROUGHPUT else self.latency_seconds

    @property
    def gap(self) -> float | None:
        """How far the objective may be above the least possible, as a share of it; None where nothing is proven."""
        if self.lower_bound_seconds is None:
            return None
        value = self.objective_value
        return max(0.0, 1 - self.lower_bound_seconds / value) if value else 0.0
