"""Compiles every search's hot loops, so that the first plans on a machine do not wait for it.

    python -m planner.compile_kernels

numba compiles a kernel when it is first called, and keeps it beside its module or in NUMBA_CACHE_DIR. Here each is
called once, by solving small problems.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.cost_graphs.hybrid.limit_search import best_hybrid
from planner.cost_graphs.hybrid.problem import HybridProblem
from planner.cost_graphs.placement.contiguous import best_contiguous
from planner.cost_graphs.placement.free import Annealing, first_incumbent
from planner.cost_graphs.placement.netlists.netlist import netlist_of
from planner.cost_graphs.placement.problem import PlacementProblem
from planner.cost_graphs.single_pass.latency import best_latency
from planner.errors import Infeasible
from planner.graph.ir import (
    Dtype,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.partition.ordered.host_states import labels_of_hosts, least_over_hosts
from planner.partition.ordered.host_windows import over_windows
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.many_devices import walk_loads
from planner.partition.ordered.positions import allowed_positions
from planner.partition.out_of_time import never
from planner.partition.placement.compiled import HAS_COMPILER
from planner.partition.portfolio.many_ideals import least_over_groups, with_fewer_ideals
from planner.partition.program_orders import bundles_of
from planner.plan.options import OptimalMode, PlanOptions
from planner.planning import make_plan, partition_problem

MULTIPLY = Operator(kind=OperatorKind.ATEN, name="aten::mul", overload="Tensor")
LINK = LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-6)


def compile_kernels(num_processes: int = 1) -> None:
    """Solves problems that call every kernel: a minute or two of CPU where none is kept yet, else seconds."""
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        for pending in [pool.apply_async(search) for search in SEARCHES]:
            pending.get()


def search_plans() -> None:
    """And cost graphs' placements, with which plans share items that move."""
    for graph, inventory, options in _plans():
        with suppress(Infeasible):
            make_plan(graph, "", inventory, options)
    _search_over_hosts()
    _search_over_a_fleet()
    _search_over_groups()
    for problem in PLACEMENTS:
        netlist = netlist_of(problem)
        Annealing(netlist).turn(first_incumbent(problem, netlist), 200, never)
        best_contiguous(problem)


def _search_over_hosts() -> None:
    """States of hosts, of which so few are kept that they are ranked."""
    inventory, options = _inventory(hosts=3, of_each=4), PlanOptions(mode=OptimalMode())
    problem = partition_problem(_graph(12, is_chain=True), inventory, options)
    hosts, labels = hosts_of(problem), labels_of_hosts(hosts_of(problem)).values()
    table = walk_loads(problem, hosts, labels, allowed_positions(problem), lambda _: 0, np.inf)
    assert table is not None
    least_over_hosts(hosts, table, least=0.0, limit=np.inf, widths=(1,))


def _search_over_a_fleet() -> None:
    """Of more unlike hosts than can be counted."""
    inventory = _inventory(hosts=11, of_each=2)
    devices = tuple(
        replace(device, memory_bytes=device.memory_bytes - number // 2)
        for number, device in enumerate(inventory.devices)
    )
    over_windows(partition_problem(_graph(12, is_chain=True), replace(inventory, devices=devices), PlanOptions()))


def _search_over_groups() -> None:
    """Of order ideals, of which so small a program has few enough without them."""
    problem = partition_problem(_graph(16, is_chain=False), _inventory(hosts=1, of_each=3), PlanOptions())
    bundles = bundles_of(problem)
    fewer = with_fewer_ideals(problem, bundles, np.arange(bundles.count) == 1, most=1000)
    assert fewer is not None
    least_over_groups(fewer, Objective.THROUGHPUT, strides=0, most_groups=100)


def search_what_plans_do_not_need() -> None:
    """A lone batch's latency on profiled cost graphs, and pipelines of training profiles."""
    for problem in PLACEMENTS:
        best_latency(problem)
    best_hybrid(_hybrid())


# Side by side; what both call would be compiled twice.
SEARCHES = (search_plans, search_what_plans_do_not_need)


def _plans() -> Iterator[tuple[Graph, Inventory, PlanOptions]]:
    chain, program = _graph(12, is_chain=True), _graph(16, is_chain=False)
    few, hosts = _inventory(hosts=1, of_each=3), _inventory(hosts=2, of_each=4)
    training = [Training(schedule=schedule) for schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.BEST)]
    for graph, inventory in product((chain, program), (few, hosts)):
        yield graph, inventory, PlanOptions(mode=OptimalMode(effort=0.01))
    # Walks with prices are for more stages and links than a hundredth of the effort allows.
    yield program, hosts, PlanOptions(mode=OptimalMode(effort=0.1))
    yield program, few, PlanOptions(mode=OptimalMode(effort=0.01), objective=Objective.MEMORY)
    for step in training:
        yield program, few, PlanOptions(mode=OptimalMode(effort=0.01), objective=Objective.STEP_TIME, training=step)
    yield program, few, PlanOptions(mode=OptimalMode(free=True, effort=0.01), objective=Objective.LATENCY)
    yield program, few, PlanOptions(mode=OptimalMode(free=True, effort=0.01))


def _graph(num_nodes: int, *, is_chain: bool) -> Graph:
    """Node k reads the node before it and a state of its own; unless it is a chain, some the one three before that, and
    the last four the first four."""
    values = [_tensor(index + 1) for index in range(2 * num_nodes + 1)]
    nodes, states = [], []
    for index in range(num_nodes):
        state, output = num_nodes + 2 + index, index + 2
        before = output - 1 if is_chain or index % 4 else max(1, output - 4)
        other = state if is_chain or index % 3 else output - 1
        if not is_chain and index >= num_nodes - 4:
            other = num_nodes + 1 - index
        arguments = (ValueReference(before), ValueReference(other))
        nodes.append(Node(operator=MULTIPLY, arguments=arguments, outputs=(output,), name=f"n{index}"))
        states.append(State(name=f"w{index}", value_id=state, kind=StateKind.PARAMETER, requires_grad=True))
    return Graph(
        torch_version="2.13.0",
        name="kernels",
        values=tuple(values),
        nodes=tuple(nodes),
        states=tuple(states),
        inputs=(Input(name="x", content=ValueReference(1)),),
        outputs=(Output(name="y", content=ValueReference(num_nodes + 1)),),
        input_tree=TreeTuple((TreeLeaf(),)),
        output_tree=TreeTuple((TreeLeaf(),)),
    )


def _tensor(value_id: int) -> Value:
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=(1000 + 100 * (value_id % 5),))


def _inventory(*, hosts: int, of_each: int) -> Inventory:
    devices = tuple(
        Device(id=f"h{host}/d{index}", kind=("cpu", "l4")[index % 2], host=f"h{host}", memory_bytes=1 << 20)
        for host, index in product(range(hosts), range(of_each))
    )
    links = {
        (one.id, other.id): LINK for one, other in product(devices, devices) if one != other and one.host == other.host
    }
    slow = LinkSpeed(bytes_per_second=LINK.bytes_per_second / 10, latency_seconds=LINK.latency_seconds)
    return Inventory(devices=devices, links=links, default_link=slow)


def _placement(classes: tuple[int, ...]) -> PlacementProblem:
    """Ten nodes, each of which reads two that stand before it."""
    nodes = np.arange(10)
    reads = [(max(0, node - back), node) for node in range(1, nodes.size) for back in (1, 3) if node >= back]
    producers = sorted({source for source, _ in reads})
    return PlacementProblem(
        seconds=np.stack([1.0 + (nodes + kind) % 3 for kind in range(len(classes))]),
        node_bytes=np.ones(nodes.size),
        tensor_producer=np.array(producers, dtype=np.int64),
        read_tensor=np.array([producers.index(source) for source, _ in reads], dtype=np.int64),
        read_node=np.array([node for _, node in reads], dtype=np.int64),
        transfer_seconds=np.full((len(classes), len(producers)), 0.5),
        is_backward=np.zeros(nodes.size, dtype=bool),
        colocation=nodes.astype(np.int64),
        class_devices=np.array(classes, dtype=np.int64),
        class_bytes=np.full(len(classes), 7.0),
        class_is_parallel=np.zeros(len(classes), dtype=bool),
        node_names=tuple(f"n{node}" for node in nodes),
        class_names=tuple(f"class{kind}" for kind in range(len(classes))),
    )


def _hybrid() -> HybridProblem:
    """Four nodes at degrees 1 and 2 with two alternatives each."""
    shape = (2, 4, 2)
    arcs = [(0, 1), (0, 2), (1, 3), (2, 3)]
    ones = np.ones(shape)
    return HybridProblem(
        degrees=np.array([1, 2], dtype=np.int64),
        seconds=np.stack([ones[0] * 4, ones[1] * 3]) + np.arange(2),
        parameter_bytes=ones,
        held_per_microbatch=ones * 2 - np.arange(2),
        held_always=ones,
        edge_source=np.array([source for source, _ in arcs], dtype=np.int64),
        edge_target=np.array([target for _, target in arcs], dtype=np.int64),
        edge_bytes=np.ones(len(arcs)),
        entering_bytes=np.ones((2, len(arcs), 2)),
        leaving_bytes=np.ones((2, len(arcs), 2)),
        microbatches=4,
        num_devices=4,
        memory_bytes=20.0,
        bandwidth=2.0,
    )


PLACEMENTS = (_placement(classes=(2,)), _placement(classes=(1, 1)))

if __name__ == "__main__":
    if not HAS_COMPILER:
        sys.exit("There is nothing to compile.")
    compile_kernels(os.cpu_count() or 1)
