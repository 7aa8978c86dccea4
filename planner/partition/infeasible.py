"""Why no segments of the program order fit the devices, and the least that would help."""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible
from planner.partition.binding_constraint import binding_constraint
from planner.partition.describe import describe_bytes, describe_node, describe_stage, smaller_batch_hint
from planner.partition.ordered.positions import few_positions
from planner.partition.ordered.program_pass import OrderedPass, evaluate_layout, ordered_pass
from planner.partition.ordered.search import Solution
from planner.partition.problem import PartitionProblem

_POSITIONS = 400


def memory_shortage(problem: PartitionProblem, mode: str, num_stages: int = 0) -> Infeasible:
    """Names the stage that lacks the most, in the segments that lack the least; and what would make a plan exist."""
    shared, closest = _least_shortage(problem, num_stages)
    if not closest.boundaries and problem.some_are_barred:
        return _kept_apart(problem, mode, num_stages)
    if not closest.boundaries:
        return Infeasible(
            f"mode {mode}: no cut into {num_stages} stages was found for {_count(problem)}; ask for fewer"
        )
    boundaries, devices = closest.boundaries, shared.devices_of(closest.classes)
    stages = evaluate_layout(problem, boundaries, devices).stages
    lacking = [
        stage.peak_bytes - int(problem.device_memory_bytes[device])
        for stage, device in zip(stages, devices, strict=True)
    ]
    worst = int(np.argmax(lacking))
    device = problem.labels.devices[devices[worst]]
    needed = stages[worst].peak_bytes
    return Infeasible(
        f"mode {mode}: no cut of the program fits the memory of {_count(problem)}{_proviso(shared)}. The closest lacks "
        f"{describe_bytes(lacking[worst])}: {describe_stage(problem, boundaries, worst, stages[worst])}, and device "
        f"{device!r} has {describe_bytes(int(problem.device_memory_bytes[devices[worst]]))}. A plan would exist with "
        f"{describe_bytes(lacking[worst])} more on each device"
        f"{_another_device(problem, num_stages)}{smaller_batch_hint(stages[worst], lacking[worst])}"
        f"{binding_constraint(problem)}",
        stage=worst,
        device=device,
        needed_bytes=needed,
        lacking_bytes=lacking[worst],
        node=problem.labels.nodes[boundaries[worst]],
    )


def _kept_apart(problem: PartitionProblem, mode: str, num_stages: int) -> Infeasible:
    """Memory aside: where nodes may run leaves no segments."""
    barred = np.isinf(problem.compute_seconds)
    node = int(np.argmax(barred.sum(axis=0)))
    able = [problem.labels.devices[device] for device in np.flatnonzero(~barred[:, node]).tolist()]
    stages = f"{num_stages} segments" if num_stages else "segments"
    return Infeasible(
        f"mode {mode}: no cut of the program into {stages}, each on a device of its own, lets every node run where it "
        f"may, by what is fixed and by what devices can run; {describe_node(problem, node)} may run on "
        f"{', '.join(map(repr, able))} "
        f"({_kinds(problem, able)}). Fix fewer modules, or use mode optimal with free placement, where a device may "
        f"hold nodes from anywhere in the program",
        node=problem.labels.nodes[node],
    )


def _kinds(problem: PartitionProblem, devices: list[str]) -> str:
    of_device = dict(zip(problem.labels.devices, problem.labels.device_kinds, strict=True))
    kinds = sorted({of_device[device] for device in devices})
    return f"kind{'s' if len(kinds) > 1 else ''} {', '.join(map(repr, kinds))}"


def _least_shortage(problem: PartitionProblem, num_stages: int) -> tuple[OrderedPass, Solution]:
    shared = ordered_pass(problem, num_stages)
    return shared, shared.least_shortage(few_positions(problem, _POSITIONS))


def _count(problem: PartitionProblem) -> str:
    total = int(problem.device_memory_bytes.sum())
    return f"{problem.num_devices} device{'s' if problem.num_devices > 1 else ''} ({describe_bytes(total)} in all)"


def _proviso(shared: OrderedPass) -> str:
    """Where not every choice of devices was tried."""
    return "" if shared.complete else ", in the orders of the devices and the tiers of their memory that were tried"


def _another_device(problem: PartitionProblem, num_stages: int) -> str:
    largest = int(np.argmax(problem.device_memory_bytes))
    _, closest = _least_shortage(problem.with_devices(np.append(np.arange(problem.num_devices), largest)), num_stages)
    if not closest.boundaries or closest.value > 0:
        return ""
    size = describe_bytes(int(problem.device_memory_bytes[largest]))
    return f", or with one more device like {problem.labels.devices[largest]!r} ({size})"
