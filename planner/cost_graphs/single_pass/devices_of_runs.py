"""From a chain of runs to devices: blocks onto devices of their class, options taken or left, the rest by itself."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.costs import device_bytes
from planner.cost_graphs.placement.incumbent import Incumbent
from planner.cost_graphs.placement.problem import PlacementProblem, node_order, producers_of_nodes
from planner.cost_graphs.single_pass.chain import ANY, Run
from planner.cost_graphs.single_pass.contraction import CORE, FREE
from planner.cost_graphs.single_pass.seconds import single_pass_seconds
from planner.cost_graphs.single_pass.unit_graph import PassGraph
from planner.partition.problem import Floats, Integers

UNPLACED = -1


class PassIncumbent(Incumbent):
    """The least latency of a single pass. If `contiguous`, an accelerator runs one block."""

    def __init__(self, problem: PlacementProblem, *, contiguous: bool) -> None:
        super().__init__(problem, placed_seconds)
        self._contiguous = contiguous

    def offer_runs(self, graph: PassGraph, runs: tuple[Run, ...]) -> None:
        self.offer(place_runs(graph, runs, contiguous=self._contiguous))


def place_runs(graph: PassGraph, runs: tuple[Run, ...], *, contiguous: bool) -> Integers | None:
    """[n] devices, or None where the blocks do not fit. Several blocks share a device only if not contiguous."""
    problem = graph.problem
    devices = np.full(problem.num_nodes, UNPLACED, dtype=np.int64)
    left = np.repeat(problem.class_bytes, problem.class_devices)
    device_of_run = _devices_of_blocks(graph, runs, left, contiguous=contiguous)
    if device_of_run is None:
        return None
    for index, device in device_of_run.items():
        members = _members(graph, runs[index], float(left[device]))
        left[device] -= problem.node_bytes[members].sum()
        core = _core(graph, runs[index])
        left[device] += problem.node_bytes[core].sum()
        devices[members] = device
    place_parallel_nodes(graph, runs, devices, contiguous=contiguous)
    return devices if (devices != UNPLACED).all() else None


def placed_seconds(problem: PlacementProblem, devices: Integers) -> float | None:
    """What a placement takes if it breaks no rule, else None."""
    classes = problem.class_of_device[devices]
    together = np.where(problem.class_is_parallel[classes], -1, devices)
    for_group = np.full(int(problem.colocation.max()) + 1, -2, dtype=np.int64)
    for_group[problem.colocation] = together
    if (for_group[problem.colocation] != together).any():
        return None
    used = device_bytes(problem, devices)
    limits = np.where(problem.class_is_parallel, np.inf, problem.class_bytes)[problem.class_of_device]
    if (used > limits).any() or not np.isfinite(problem.seconds[classes, np.arange(devices.size)]).all():
        return None
    return single_pass_seconds(problem, devices)


def _devices_of_blocks(
    graph: PassGraph, runs: tuple[Run, ...], left: Floats, *, contiguous: bool
) -> dict[int, int] | None:
    """Device by run, largest first where it is not given; takes their bytes, options apart, from `left` [d]."""
    problem = graph.problem
    blocks = [index for index, run in enumerate(runs) if not problem.class_is_parallel[run.device_class]]
    block_bytes = {index: float(graph.unit_bytes[list(runs[index].units)].sum()) for index in blocks}
    used = np.zeros(problem.num_devices, dtype=np.bool_)
    device_of_run: dict[int, int] = {}
    for index in sorted(blocks, key=lambda index: (runs[index].device == ANY, -block_bytes[index], index)):
        device: int | None = runs[index].device
        if device == ANY:
            device = _device_for(
                problem, runs[index].device_class, block_bytes[index], left, used, contiguous=contiguous
            )
        if device is None:
            return None
        device_of_run[index] = device
        used[device] = True
        left[device] -= block_bytes[index]
    return dict(sorted(device_of_run.items()))


def _core(graph: PassGraph, run: Run) -> np.ndarray:
    units = graph.units
    inside = np.zeros(graph.num_units + 1, dtype=np.bool_)
    inside[list(run.units)] = True
    inside[FREE] = False
    core: np.ndarray = inside[units.unit_of_node] & (units.option_of_node == CORE)
    return core


def _members(graph: PassGraph, run: Run, spare: float) -> Integers:
    """The nodes of a block: its units', and of their options those that pay and fit in `spare` bytes."""
    units = graph.units
    inside = np.zeros(graph.num_units, dtype=np.bool_)
    inside[list(run.units)] = True
    row = int(np.flatnonzero(graph.serial == run.device_class)[0])
    option_bytes, loss = graph.option_bytes[row], graph.option_loss[row]
    worthwhile = [
        option for option in np.flatnonzero(inside[units.option_unit]).tolist() if _pays(graph, inside, row, option)
    ]
    members = _core(graph, run)
    for option in sorted(worthwhile, key=lambda option: (-loss[option] / max(option_bytes[option], 1e-300), option)):
        if option_bytes[option] <= spare:
            spare -= option_bytes[option]
            members |= units.option_of_node == option
    return np.flatnonzero(members)


def _pays(graph: PassGraph, inside: np.ndarray, row: int, option: int) -> bool:
    tensor = int(graph.option_tensor[option])
    if graph.option_loss[row, option] <= 0:
        return False
    if tensor < 0:
        return True
    return bool(inside[graph.reader_unit[graph.reader_begin[tensor] : graph.reader_begin[tensor + 1]]].all())


def _device_for(
    problem: PlacementProblem,
    device_class: int,
    needed_bytes: float,
    left: Floats,
    used: np.ndarray,
    *,
    contiguous: bool,
) -> int | None:
    """An unused device, else the fullest on which the block fits."""
    candidates = np.flatnonzero((problem.class_of_device == device_class) & (needed_bytes <= left))
    unused = candidates[~used[candidates]]
    if unused.size:
        return int(unused[0])
    if contiguous or not candidates.size:
        return None
    return int(candidates[left[candidates].argmin()])


def place_parallel_nodes(graph: PassGraph, runs: tuple[Run, ...], devices: Integers, *, contiguous: bool) -> None:
    """Fills in `devices` [n] in place; a node stays UNPLACED where there is no device for it.

    If `contiguous`, a class has one device for what runs before the first block, one for what then waits for that one,
    and so on, as far as its devices go round: with enough of them, all devices can be put in an order.
    """
    problem, units = graph.problem, graph.units
    hosts = [host for host in graph.parallel.tolist() if problem.class_devices[host]]
    first = np.cumsum(problem.class_devices) - problem.class_devices
    class_of_unit = {unit: run.device_class for run in runs for unit in run.units}
    alone = np.flatnonzero(devices == UNPLACED)
    after = _blocks_before(problem, runs, graph, devices) if contiguous else [0] * problem.num_nodes
    turns = {level: turn for turn, level in enumerate(sorted({after[node] for node in alone.tolist()}))}
    for node in alone.tolist():
        device_class = class_of_unit.get(int(units.unit_of_node[node]), -1)
        if device_class not in hosts or units.option_of_node[node] != CORE:
            device_class = min(hosts, key=lambda host: (problem.seconds[host, node], host), default=UNPLACED)
        if device_class != UNPLACED:
            last = int(problem.class_devices[device_class]) - 1
            devices[node] = first[device_class] + min(turns[after[node]], last)


def _blocks_before(problem: PlacementProblem, runs: tuple[Run, ...], graph: PassGraph, devices: Integers) -> list[int]:
    """[n] the number, in the chain's order, of the last block that a node waits for, from 1; 0: it waits for none."""
    number = np.zeros(graph.num_units + 1, dtype=np.int64)
    blocks = [run for run in runs if not problem.class_is_parallel[run.device_class]]
    for index, run in enumerate(blocks):
        number[list(run.units)] = index + 1
    producers = producers_of_nodes(problem)
    last_block = [0] * problem.num_nodes
    for node in node_order(problem):
        own = int(number[graph.units.unit_of_node[node]]) if devices[node] != UNPLACED else 0
        last_block[node] = max([own, *(last_block[producer] for producer in producers[node])])
    return last_block
