"""From a graph, its costs and an inventory to the numbers that partitioning sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost.inventory import Inventory
from planner.cost.link_arrays import link_arrays
from planner.cost.roofline import NodeCosts
from planner.cost.update_rates import update_rates
from planner.errors import OptionsError
from planner.graph.alias import no_cut_groups, storage_roots, storage_sources
from planner.graph.gradients import values_with_gradient
from planner.graph.ir import Graph, Node, values_in, values_read
from planner.graph.operators import facts_of
from planner.graph.recomputable import recomputable_nodes
from planner.partition.constraints import fixed_devices, joined_groups
from planner.partition.objective import UNSPLIT_SCHEDULES, Training
from planner.partition.problem import NO_SOURCE, Booleans, Floats, Integers, Labels, PartitionProblem

# An opaque state counts as float32.
OPAQUE_ELEMENT_BYTES = 4


def problem_from_graph(
    graph: Graph,
    costs: NodeCosts,
    inventory: Inventory,
    *,
    relay: bool,
    microbatches_in_flight: int,
    training: Training | None = None,
    fixed: Sequence[tuple[str, str]] = (),
    together: Sequence[Sequence[str]] = (),
    recompute: bool = False,
) -> PartitionProblem:
    """Linear in values + reads. Raises GraphError, InventoryError or OptionsError for what cannot be planned at all.

    `fixed`: (module path, device id). `together`: module paths that have to share a stage. `recompute`:
    whether stages may run nodes again.
    """
    roots = storage_roots(graph)
    states = {state.value_id for state in graph.states}
    values = _values(graph, states)
    root_index = {root: index for index, root in enumerate(sorted({roots[value] for value in values.producers}))}
    producers = np.array(list(values.producers.values()), dtype=np.int64)
    state_of_root = {root: index for index, root in enumerate(sorted({roots[state] for state in states}))}
    uses_of_nodes = {
        (state_of_root[roots[value]], index) for index, value in _reads_in_order(graph.nodes) if value in states
    }
    returned = _returned_states(graph, states, roots, state_of_root)
    uses = sorted(uses_of_nodes | {(state, len(graph.nodes) - 1) for state in returned})
    shown_reads = _direct_reads_of_shown_states(graph, states, roots, root_index)
    paths = tuple(node.module_path for node in graph.nodes)
    device_ids = tuple(device.id for device in inventory.devices)
    groups = joined_groups(no_cut_groups(graph), paths, together)
    latency, per_byte, handover = link_arrays(inventory, costs.sources)
    deliveries = _deliveries(costs)
    update = [update_rates(device, costs.sources) for device in inventory.devices]
    return PartitionProblem(
        compute_seconds=costs.seconds + deliveries,
        delivery_seconds=deliveries,
        flops=costs.flops,
        value_bytes=_sizes(values.producers, costs),
        value_producer=producers,
        value_root=np.array([root_index[roots[value]] for value in values.producers], dtype=np.int64),
        value_returned=np.array([value in values.returned for value in values.producers], dtype=np.bool_),
        root_bytes=np.array(
            [0 if root in states else costs.shapes[root].size_bytes for root in root_index], dtype=np.int64
        ),
        root_producer=np.array([values.producers.get(root, -1) for root in root_index], dtype=np.int64),
        read_value=np.array([value for value, _ in values.reads], dtype=np.int64),
        read_node=np.array([node for _, node in values.reads], dtype=np.int64),
        state_bytes=_sizes(state_of_root, costs),
        use_state=np.array([state for state, _ in uses], dtype=np.int64),
        use_node=np.array([node for _, node in uses], dtype=np.int64),
        use_is_return=np.array([use not in uses_of_nodes for use in uses], dtype=np.bool_),
        returned_state=np.array(returned, dtype=np.int64),
        shown_root=np.array([root for root, _ in shown_reads], dtype=np.int64),
        shown_node=np.array([node for _, node in shown_reads], dtype=np.int64),
        cut_allowed=_cut_allowed(groups, len(graph.nodes)),
        node_group=_node_group(groups, len(graph.nodes)),
        is_embedding=np.array([facts_of(node.operator.name).embedding for node in graph.nodes], dtype=np.bool_),
        device_memory_bytes=np.array([device.memory_bytes for device in inventory.devices], dtype=np.int64),
        device_norm_rate=np.array([rates.norms for rates in update]),
        device_update_rate=np.array([rates.optimizer for rates in update]),
        link_latency_seconds=latency,
        link_seconds_per_byte=per_byte,
        link_handover_seconds=handover,
        relay=relay,
        microbatches_in_flight=microbatches_in_flight,
        labels=Labels(
            nodes=tuple(node.name or node.operator.qualified_name for node in graph.nodes),
            module_paths=paths,
            devices=device_ids,
            device_kinds=tuple(device.kind for device in inventory.devices),
        ),
        fixed_device=fixed_devices(fixed, paths, groups, device_ids),
        training=training,
        **(_recomputation_arrays(graph, values.producers) if recompute else {}),
        **_training_arrays(graph, costs, values.producers, roots, state_of_root, training),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """`producers`: value id to node index, -1 for an input. `reads`: (dense value index, node index)."""

    producers: Mapping[int, int]
    reads: Sequence[tuple[int, int]]
    returned: frozenset[int]


def _values(graph: Graph, states: set[int]) -> _Values:
    producers: dict[int, int] = {}
    for argument in graph.inputs:
        for value in values_in(argument.content):
            producers.setdefault(value, -1)
    for index, node in enumerate(graph.nodes):
        for value in node.outputs:
            if value and value not in states:
                producers.setdefault(value, index)
    dense = {value: index for index, value in enumerate(producers)}
    reads = [
        (dense[value], index) for index, node in enumerate(graph.nodes) for value in values_read(node) if value in dense
    ]
    returned = frozenset(value for output in graph.outputs for value in values_in(output.content))
    return _Values(producers=producers, reads=reads, returned=returned)


def _deliveries(costs: NodeCosts) -> Floats:
    """[devices, nodes]. Inputs are taken where the program begins, and outputs handed back where it ends."""
    # Pages that stay empty take no memory.
    seconds = np.zeros(costs.seconds.shape)
    seconds[:, 0] += costs.input_seconds
    seconds[:, -1] += costs.output_seconds
    return seconds


def _recomputation_arrays(graph: Graph, producers: Mapping[int, int]) -> dict[str, Any]:
    sources = storage_sources(graph)
    dense = {value: index for index, value in enumerate(producers)}
    value_sources = [
        NO_SOURCE if sources[value] == value else dense.get(sources[value], NO_SOURCE) for value in producers
    ]
    return {
        "node_recomputable": np.array(recomputable_nodes(graph), dtype=np.bool_),
        "value_source": np.array(value_sources, dtype=np.int64),
    }


def _training_arrays(
    graph: Graph,
    costs: NodeCosts,
    producers: Mapping[int, int],
    roots: Mapping[int, int],
    state_of_root: Mapping[int, int],
    training: Training | None,
) -> dict[str, Any]:
    """The problem's fields about gradients; none in inference. Gradients are as large as what they are of."""
    if training is None:
        return {}
    trained = {state_of_root[roots[state.value_id]] for state in graph.states if state.requires_grad}
    if not trained:
        raise OptionsError(
            "training: no state of the graph requires a gradient, so there is nothing to train; export the module with "
            "requires_grad set on what is to be trained, or ask for a plan without training"
        )
    varying = values_with_gradient(graph)
    sizes, counts = np.zeros(len(state_of_root), dtype=np.int64), np.zeros(len(state_of_root))
    for root, state in state_of_root.items():
        if state in trained:
            shape = costs.shapes[root]
            sizes[state] = shape.size_bytes
            counts[state] = shape.size_bytes / (shape.dtype.size_bytes if shape.dtype else OPAQUE_ELEMENT_BYTES)
    is_split = training.schedule not in UNSPLIT_SCHEDULES
    has_gradient = np.array([not varying.isdisjoint(node.outputs) for node in graph.nodes], dtype=np.bool_)
    saved = costs.saved_by_nodes(graph)
    return {
        "node_backward_ratio": costs.backward_ratio,
        "node_split_ratio": costs.split_ratio if is_split else np.full_like(costs.split_ratio, np.nan),
        "node_weight_share": costs.weight_share,
        "node_has_gradient": has_gradient,
        "node_spares_inputs": np.array([not one.inputs for one in saved], dtype=np.bool_),
        "node_spares_outputs": np.array([not one.outputs for one in saved], dtype=np.bool_),
        "node_kept_bytes": np.where(has_gradient, np.array([one.within_bytes for one in saved], dtype=np.int64), 0),
        "value_gradient_bytes": np.where(
            [value in varying and made >= 0 for value, made in producers.items()], _sizes(producers, costs), 0
        ),
        "state_gradient_bytes": sizes,
        "state_optimizer_bytes": np.ceil(counts * training.optimizer_bytes_per_parameter).astype(np.int64),
    }


def _returned_states(
    graph: Graph, states: set[int], roots: Mapping[int, int], state_of_root: Mapping[int, int]
) -> list[int]:
    returned = {value for output in graph.outputs for value in values_in(output.content)}
    return sorted({state_of_root[roots[value]] for value in returned & states})


def _direct_reads_of_shown_states(
    graph: Graph, states: set[int], roots: Mapping[int, int], root_index: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Distinct (root, node) where a node reads a state that some value shows; node n where the graph returns it."""
    reads = {(value, index) for index, value in _reads_in_order(graph.nodes)}
    reads.update((value, len(graph.nodes)) for output in graph.outputs for value in values_in(output.content))
    pairs = {(root_index[roots[value]], at) for value, at in reads if value in states and roots[value] in root_index}
    return sorted(pairs)


def _reads_in_order(nodes: Sequence[Node]) -> Iterator[tuple[int, int]]:
    return ((index, value) for index, node in enumerate(nodes) for value in values_read(node))


def _sizes(value_ids: Mapping[int, int], costs: NodeCosts) -> Integers:
    sizes = [costs.shapes[value].size_bytes for value in value_ids]
    # A size beyond 64 bits is refused with the sum, in floats.
    return np.array([min(size, 1 << 62) for size in sizes], dtype=np.int64)


def _cut_allowed(groups: Sequence[Sequence[int]], num_nodes: int) -> Booleans:
    inside = np.zeros(num_nodes + 2, dtype=np.int64)
    for group in groups:
        inside[min(group) + 1] += 1
        inside[max(group) + 1] -= 1
    allowed: Booleans = np.cumsum(inside)[: num_nodes + 1] == 0
    return allowed


def _node_group(groups: Sequence[Sequence[int]], num_nodes: int) -> Integers:
    """-1 for a node that may go where it likes."""
    group_of_node = np.full(num_nodes, -1, dtype=np.int64)
    for index, group in enumerate(groups):
        group_of_node[list(group)] = index
    return group_of_node
