"""Items of a contiguous placement moved between its stages, for graphs with too many ideals to look at all of them."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.costs import device_bytes
from planner.cost_graphs.placement.ideals.contraction import Items
from planner.cost_graphs.placement.ideals.incumbent import StagesIncumbent
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.partition.arcs import after_of_arcs, distinct_arcs, topological_order
from planner.partition.out_of_time import OutOfTime
from planner.partition.placement.stage_moves import Costs, Flow, is_too_large, with_items_moved
from planner.partition.problem import Integers


def move_items(items: Items, incumbent: StagesIncumbent, bound: float, out_of_time: OutOfTime) -> None:
    """From the best in hand, if there is one, down to the bound; the stages stay in their order, each on its device."""
    problem = incumbent.problem
    if incumbent.devices is None:
        return
    device_of_item = np.empty(items.num_items, dtype=np.int64)
    device_of_item[items.item_of_node] = incumbent.devices
    devices = _in_order(items, device_of_item, problem.num_devices)
    stage_of_device = np.full(problem.num_devices, -1, dtype=np.int64)
    stage_of_device[devices] = np.arange(devices.size)
    flow = _flow(problem, items)
    if is_too_large(flow, devices.size, problem.num_classes**2):
        return
    moved, _ = with_items_moved(
        flow,
        _costs(problem, items, devices, incumbent.devices),
        stage_of_device[device_of_item],
        np.arange(devices.size),
        effort=1.0,
        target_seconds=bound,
        out_of_time=out_of_time,
    )
    incumbent.offer(devices[moved][items.item_of_node])


def _in_order(items: Items, device_of_item: Integers, num_devices: int) -> Integers:
    """The devices that hold any item, as arcs between their items ask for."""
    tails, heads = distinct_arcs(device_of_item[items.arc_source], device_of_item[items.arc_target], num_devices)
    before = after_of_arcs(heads.tolist(), tails.tolist(), num_devices)
    after = after_of_arcs(tails.tolist(), heads.tolist(), num_devices)
    order = np.array(topological_order(before, after), dtype=np.int64)
    return order[np.isin(order, device_of_item)]


def _flow(problem: PlacementProblem, items: Items) -> Flow:
    return Flow.of(
        items.num_items,
        maker=items.item_of_node[problem.tensor_producer],
        is_returned=np.zeros(problem.num_tensors, dtype=np.bool_),
        comes_back=np.zeros(problem.num_tensors, dtype=np.bool_),
        reads=(problem.read_tensor, items.item_of_node[problem.read_node]),
        arcs=(items.arc_source, items.arc_target),
    )


def _costs(problem: PlacementProblem, items: Items, devices: Integers, device_of_node: Integers) -> Costs:
    """What a device pays for a tensor depends on its own class alone."""
    kinds, count = problem.class_of_device[devices], problem.num_classes
    rows, pays, memory = problem.seconds, problem.transfer_seconds, np.nan_to_num(problem.class_bytes[kinds])
    seconds = np.stack([np.bincount(items.item_of_node, row, items.num_items) for row in rows], dtype=np.float64)
    return Costs(
        seconds=seconds[None],
        by_maker=np.repeat(pays, count, axis=0)[None],
        by_reader=np.tile(pays, (count, 1))[None],
        latency=np.zeros((1, count * count)),
        held=np.bincount(items.item_of_node, problem.node_bytes, items.num_items).astype(np.float64),
        buffered=np.zeros(problem.num_tensors),
        link=kinds[:, None] * count + kinds,
        kind=kinds,
        memory=memory,
        spare=memory - device_bytes(problem, device_of_node)[devices],
    )
