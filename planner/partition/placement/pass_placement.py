"""From a chain of runs to devices: blocks onto the devices of their class, options taken or left, the rest on the host."""

from __future__ import annotations

import numpy as np

from planner.partition.placement.pass_chain import Run
from planner.partition.placement.pass_graph import PassGraph
from planner.partition.placement.problem import PlacementProblem
from planner.partition.placement.single_pass import single_pass_seconds
from planner.partition.problem import Floats, Integers


def place_runs(graph: PassGraph, runs: tuple[Run, ...], *, contiguous: bool) -> Integers | None:
    """[n] devices, or None where the blocks do not fit on them. Several blocks share a device only if not contiguous."""
    problem = graph.problem
    first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(problem.class_devices)[:-1]])
    devices = np.full(problem.num_nodes, -1, dtype=np.int64)
    left = np.repeat(problem.class_bytes, problem.class_devices)
    blocks = [index for index, run in enumerate(runs) if not problem.class_is_parallel[run.device_class]]
    used = np.zeros(problem.num_devices, dtype=np.bool_)
    members = {index: _members(graph, runs[index]) for index in blocks}
    for index in sorted(blocks, key=lambda index: (-problem.node_bytes[members[index]].sum(), index)):
        device = _device_for(problem, first, runs[index], problem.node_bytes[members[index]].sum(), left, used, contiguous)
        if device is None:
            return None
        used[device] = True
        devices[members[index]] = device
        left[device] -= problem.node_bytes[members[index]].sum()
    _place_alone(graph, runs, devices, first, contiguous=contiguous)
    return devices if (devices >= 0).all() else None


def placed_seconds(problem: PlacementProblem, devices: Integers) -> float | None:
    """What a placement takes if it breaks no rule, else None."""
    classes = problem.class_of_device[devices]
    together = np.where(problem.class_is_parallel[classes], -1, devices)
    for_group = np.full(int(problem.colocation.max()) + 1, -2, dtype=np.int64)
    for_group[problem.colocation] = together
    if (for_group[problem.colocation] != together).any():
        return None
    held: Floats = np.bincount(devices, weights=problem.node_bytes, minlength=problem.num_devices)
    limits = np.where(problem.class_is_parallel, np.inf, problem.class_bytes)[problem.class_of_device]
    if (held > limits).any() or not np.isfinite(problem.seconds[classes, np.arange(devices.size)]).all():
        return None
    return single_pass_seconds(problem, devices)


def _members(graph: PassGraph, run: Run) -> Integers:
    """The nodes of a block: its units', and of their options those that pay and still fit."""
    units, problem = graph.units, graph.problem
    inside = np.zeros(graph.num_units + 1, dtype=np.bool_)
    inside[list(run.units)] = True
    inside[-1] = False
    core = inside[units.unit_of_node] & (units.option_of_node < 0)
    row = int(np.flatnonzero(graph.serial == run.device_class)[0])
    spare = problem.class_bytes[run.device_class] - problem.node_bytes[core].sum()
    chosen = [option for option in np.flatnonzero(inside[units.option_unit]).tolist() if _pays(graph, inside, row, option)]
    chosen.sort(key=lambda option: (-graph.option_loss[row, option] / max(graph.option_bytes[row, option], 1e-300), option))
    taken = core.copy()
    for option in chosen:
        if graph.option_bytes[row, option] <= spare:
            spare -= graph.option_bytes[row, option]
            taken |= units.option_of_node == option
    return np.flatnonzero(taken)


def _pays(graph: PassGraph, inside: np.ndarray, row: int, option: int) -> bool:
    tensor = int(graph.option_tensor[option])
    if graph.option_loss[row, option] <= 0:
        return False
    if tensor < 0:
        return True
    return bool(inside[graph.reader_unit[graph.reader_begin[tensor] : graph.reader_begin[tensor + 1]]].all())


def _device_for(
    problem: PlacementProblem,
    first: Integers,
    run: Run,
    held: float,
    left: Floats,
    used: np.ndarray,
    contiguous: bool,
) -> int | None:
    """An unused device, else the fullest on which the block fits."""
    begin = int(first[run.device_class])
    candidates = range(begin, begin + int(problem.class_devices[run.device_class]))
    for device in candidates:
        if not used[device] and held <= left[device]:
            return device
    fits = [device for device in candidates if not contiguous and held <= left[device]]
    return min(fits, key=lambda device: (left[device], device)) if fits else None


def _place_alone(
    graph: PassGraph, runs: tuple[Run, ...], devices: Integers, first: Integers, *, contiguous: bool
) -> None:
    """Nodes of parallel classes: on the class's first device; if contiguous, on the next after each block they follow."""
    problem, units = graph.problem, graph.units
    hosts = [int(chosen) for chosen in graph.parallel if problem.class_devices[chosen]]
    class_of_unit = {unit: run.device_class for run in runs for unit in run.units}
    for node in np.flatnonzero(devices < 0).tolist():
        unit = int(units.unit_of_node[node])
        chosen = class_of_unit.get(unit, -1)
        if chosen in hosts and units.option_of_node[node] < 0:
            devices[node] = first[chosen]
        elif units.option_of_node[node] >= 0 or unit < 0:
            quickest = min(hosts, key=lambda host: (problem.seconds[host, node], host), default=None)
            devices[node] = -1 if quickest is None else first[quickest]
