"""Whether the arrays of a PartitionProblem fit together, before an algorithm takes them at their word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from planner.errors import GraphError, InventoryError, PlannerError
from planner.graph.cycle import cycle_text, find_cycle

if TYPE_CHECKING:
    from planner.partition.problem import PartitionProblem

# Sums and products of such stay finite.
MAX_SECONDS = 1e15


def check_seconds_shape(seconds: npt.NDArray[np.float64]) -> None:
    """All other sizes are compared with this one's."""
    if seconds.ndim != 2:
        raise GraphError(f"compute_seconds has {seconds.ndim} dimensions, needs two: devices x nodes")


def check_arrays(problem: PartitionProblem) -> None:
    """Raises GraphError or InventoryError that names the field and the entry. Linear."""
    _check_lengths(problem)
    _check_indexes(problem)
    _check_links(problem)
    _check_order(problem)


def _check_lengths(problem: PartitionProblem) -> None:
    nodes, values, roots, devices = (
        problem.num_nodes,
        problem.num_values,
        problem.root_bytes.size,
        problem.num_devices,
    )
    expected: Mapping[str, tuple[int, ...]] = {
        **dict.fromkeys(("flops", "node_group", "is_embedding"), (nodes,)),
        "cut_allowed": (nodes + 1,),
        **dict.fromkeys(("value_producer", "value_root", "value_returned"), (values,)),
        "root_producer": (roots,),
        "read_node": problem.read_value.shape,
        **dict.fromkeys(("use_node", "use_is_return"), problem.use_state.shape),
        "shown_node": problem.shown_root.shape,
        "device_memory_bytes": (devices,),
        "link_latency_seconds": (devices, devices),
        "link_seconds_per_byte": (devices, devices),
    }
    for field, shape in expected.items():
        _check_shape(field, getattr(problem, field).shape, shape)
    # These may be left out.
    for field, size in (
        ("fixed_device", nodes),
        ("node_has_gradient", nodes),
        ("node_spares_inputs", nodes),
        ("node_spares_outputs", nodes),
        ("node_kept_bytes", nodes),
        ("node_recomputable", nodes),
        ("value_source", values),
        ("value_gradient_bytes", values),
        ("state_gradient_bytes", problem.state_bytes.size),
        ("state_optimizer_bytes", problem.state_bytes.size),
        ("device_norm_rate", devices),
        ("device_update_rate", devices),
    ):
        if getattr(problem, field).size:
            _check_shape(field, getattr(problem, field).shape, (size,))
    for field in ("node_backward_ratio", "node_split_ratio", "node_weight_share", "delivery_seconds"):
        if getattr(problem, field).size:
            _check_shape(field, getattr(problem, field).shape, (devices, nodes))
    if problem.link_handover_seconds.size:
        _check_shape("link_handover_seconds", problem.link_handover_seconds.shape, (devices, devices))
    labels = problem.labels
    for field, entries, size in (
        ("labels.nodes", labels.nodes, nodes),
        ("labels.module_paths", labels.module_paths, nodes),
        ("labels.devices", labels.devices, devices),
        ("labels.device_kinds", labels.device_kinds, devices),
    ):
        _check_shape(field, (len(entries),), (size,))


def _check_shape(field: str, shape: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if shape != needed:
        raise GraphError(f"{field} is {_product(shape)}, needs {_product(needed)} entries", field=field)


def _product(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _check_indexes(problem: PartitionProblem) -> None:
    """Each entry points at something that there is; -1 where that may be nothing."""
    nodes, values, roots = problem.num_nodes, problem.num_values, problem.root_bytes.size
    bounds: Mapping[str, tuple[int, int]] = {
        "value_producer": (-1, nodes),
        "value_root": (0, roots),
        "root_producer": (-1, nodes),
        "value_source": (-1, values),
        "read_value": (0, values),
        "read_node": (0, nodes),
        **dict.fromkeys(("use_state", "returned_state"), (0, problem.state_bytes.size)),
        "use_node": (0, nodes),
        "shown_root": (0, roots),
        "shown_node": (0, nodes + 1),
        "node_group": (-1, nodes),
        "fixed_device": (-1, problem.num_devices),
    }
    for field, (least, end) in bounds.items():
        indexes = getattr(problem, field)
        wrong = np.flatnonzero((indexes < least) | (indexes >= end))
        if wrong.size:
            at = int(wrong[0])
            kind: type[PlannerError] = InventoryError if field == "fixed_device" else GraphError
            raise kind(f"{field}[{at}] is {indexes[at]}, needs {least} to {end - 1}", field=field)


def _check_links(problem: PartitionProblem) -> None:
    short = np.flatnonzero(problem.device_memory_bytes < 0)
    if short.size:
        device = int(short[0])
        memory_bytes = int(problem.device_memory_bytes[device])
        raise InventoryError(
            f"device {problem.labels.devices[device]!r}: memory_bytes is {memory_bytes}, needs 0 or more",
            device=problem.labels.devices[device],
        )
    for field in ("link_latency_seconds", "link_seconds_per_byte", "link_handover_seconds"):
        links: Any = getattr(problem, field)
        wrong = np.argwhere(~((links >= 0) & (links <= MAX_SECONDS)))
        if wrong.size:
            source, target = (int(end) for end in wrong[0])
            names = problem.labels.devices
            raise InventoryError(
                f"{field} from {names[source]!r} to {names[target]!r} is {links[source, target]}, needs a number "
                f"from 0 to {MAX_SECONDS:g}",
                field=field,
            )


def _check_order(problem: PartitionProblem) -> None:
    """Program order: a node reads what stands before it."""
    producers = problem.value_producer[problem.read_value]
    early = np.flatnonzero(producers >= problem.read_node)
    if not early.size:
        return
    makers, readers = problem.node_arcs
    cycle = find_cycle(problem.num_nodes, zip(makers.tolist(), readers.tolist(), strict=True))
    names = problem.labels.nodes
    if cycle is not None:
        text = cycle_text([repr(names[node]) for node in cycle])
        raise GraphError(f"the nodes form a cycle: {text}, each read by the next; leave one read out")
    reader, producer = int(problem.read_node[early[0]]), int(producers[early[0]])
    raise GraphError(
        f"node {reader} ({names[reader]!r}) reads what node {producer} ({names[producer]!r}) makes later; put "
        f"the nodes in an order in which each comes after those that it reads"
    )
