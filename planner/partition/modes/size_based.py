"""Mode "size_based": first fit by bytes in program order, as torch.fx's accelerator partitioner does.

A program that fits the largest device that can run it stays whole there. Otherwise a stage opens on the first unused
device in list order that can hold and run the next node, and grows while it fits. Bytes are a stage's own peak
(distinct states, live tensors, buffers; in training as many microbatches as a stage may ever keep) and a device may be
filled exactly. Where first fit runs out of devices although some cut fits, that cut is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.partition.assignment import Assignment, contiguous
from planner.partition.describe import describe_bytes
from planner.partition.infeasible import memory_shortage
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.ordered.positions import allowed_positions
from planner.partition.ordered.segments import Segments
from planner.partition.problem import Booleans, Integers, PartitionProblem


def any_fit(problem: PartitionProblem) -> Assignment:
    """Where first fit runs out of devices. Raises Infeasible where nothing fits."""
    layout = least_bottleneck(problem)
    if layout is not None:
        reason = "first fit runs out of devices here; this cut, the least loaded that fits, is taken instead"
        return contiguous(problem, layout.boundaries, layout.devices, [reason] * len(layout.devices))
    raise memory_shortage(problem, "size_based")


def size_based(problem: PartitionProblem, otherwise: Callable[[PartitionProblem], Assignment] = any_fit) -> Assignment:
    """`otherwise` is asked where first fit runs out of devices. Raises Infeasible where nothing fits."""
    segments = Segments(problem)
    whole = int(segments.row(0, problem.num_nodes).peak_bytes[-1])
    able = [device for device in range(problem.num_devices) if _runs(problem, device, 0, [problem.num_nodes])[0]]
    largest = max(able, key=lambda device: (int(problem.device_memory_bytes[device]), -device), default=None)
    if largest is not None and whole <= problem.device_memory_bytes[largest]:
        name = problem.labels.devices[largest]
        return contiguous(problem, (0, problem.num_nodes), (largest,), (f"the whole program fits {name!r}",))
    return _first_fit(problem, segments) or otherwise(problem)


def _first_fit(problem: PartitionProblem, segments: Segments) -> Assignment | None:
    positions = allowed_positions(problem)
    boundaries, devices, reasons = [0], list[int](), list[str]()
    unused = list(range(problem.num_devices))
    while boundaries[-1] < problem.num_nodes:
        start = boundaries[-1]
        ends = positions[positions > start]
        peaks = segments.row(start, problem.num_nodes).peak_bytes[ends - start - 1]
        room = problem.device_memory_bytes
        fits = {device: (peaks <= room[device]) & _runs(problem, device, start, ends) for device in unused}
        device = next((device for device in unused if fits[device][0]), None)
        if device is None:
            return None
        # A longer stage may need less: it stops sending what it now reads itself.
        fitting = int(np.flatnonzero(fits[device])[-1])
        unused.remove(device)
        boundaries.append(int(ends[fitting]))
        devices.append(device)
        reasons.append(_reason(problem, device, peaks[fitting], fitting + 1 == ends.size))
    return contiguous(problem, boundaries, devices, reasons)


def _runs(problem: PartitionProblem, device: int, start: int, ends: Integers | Sequence[int]) -> Booleans:
    """[ends] whether the device can run every node of each segment."""
    seconds = problem.segment_seconds(np.array(device), np.array(start), np.asarray(ends))
    runs: Booleans = np.isfinite(seconds)
    return runs


def _reason(problem: PartitionProblem, device: int, peak: float, ends: bool) -> str:
    name, room = problem.labels.devices[device], describe_bytes(int(problem.device_memory_bytes[device]))
    if ends:
        return "the program ends"
    return f"the next node would exceed the {room} of {name!r}, of which {describe_bytes(int(peak))} are filled"
