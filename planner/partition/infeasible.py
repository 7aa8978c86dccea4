"""Why no segments of the program order fit the devices, and the least that would help; or why nothing at all can fit,
where that is plain: what is fixed, what stays together, or all of it is too much.
"""

from __future__ import annotations

import numpy as np

from planner.errors import Infeasible
from planner.partition.bounds.work import node_state_bytes
from planner.partition.describe import describe_bytes, describe_node, describe_stage, smaller_batch_hint
from planner.partition.ordered.positions import few_positions
from planner.partition.ordered.program_pass import OrderedPass, evaluate_layout, ordered_pass
from planner.partition.ordered.search import Solution
from planner.partition.problem import FREE, Integers, PartitionProblem
from planner.partition.program_orders import Bundles, bundles_of

_POSITIONS = 400


def memory_shortage(problem: PartitionProblem, mode: str, num_stages: int = 0) -> Infeasible:
    """Names the stage that lacks the most, in the segments that lack the least; and what would make a plan exist."""
    return _shortage(problem, mode, num_stages, *_least_shortage(problem, num_stages))


def fitting_segments(
    problem: PartitionProblem, mode: str, num_stages: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(boundaries, devices) of the segments that lack the least, which a search that had too many devices to tell apart
    may have missed. Raises the memory shortage where they lack anything."""
    shared, closest = _least_shortage(problem, num_stages)
    if closest.boundaries:
        layout = closest.boundaries, shared.devices_of(closest.steps)
        if evaluate_layout(problem, *layout).fits(problem):
            return layout
    raise _shortage(problem, mode, num_stages, shared, closest)


def _shortage(
    problem: PartitionProblem, mode: str, num_stages: int, shared: OrderedPass, closest: Solution
) -> Infeasible:
    if not closest.boundaries and problem.some_are_barred:
        return _kept_apart(problem, mode, num_stages)
    if not closest.boundaries:
        return Infeasible(
            f"mode {mode}: no cut into {num_stages} stages was found for {_count(problem)}; ask for fewer"
        )
    boundaries, devices = closest.boundaries, shared.devices_of(closest.steps)
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


def binding_constraint(problem: PartitionProblem) -> str:
    """A sentence to append, or nothing: whatever the cuts, the first of these that holds keeps every plan away."""
    return _fixed(problem) or _large_node(problem) or _large_bundle(problem, bundles_of(problem)) or _all(problem)


def _distinct_bytes(problem: PartitionProblem, nodes: Integers) -> int:
    """Of the states that the nodes use."""
    states = np.unique(problem.use_state[np.isin(problem.use_node, nodes)])
    return int(problem.whole_state_bytes[states].sum())


def _fixed(problem: PartitionProblem) -> str:
    for device in np.unique(problem.fixed_device[problem.fixed_device != FREE]).tolist():
        nodes = np.flatnonzero(problem.fixed_device == device)
        needed, room = _distinct_bytes(problem, nodes), int(problem.device_memory_bytes[device])
        if needed > room:
            largest = nodes[int(np.argmax(node_state_bytes(problem)[nodes]))]
            return (
                f". What is fixed to device {problem.labels.devices[device]!r} ({nodes.size} nodes, "
                f"{describe_node(problem, int(largest))} the largest) reads {describe_bytes(needed)} of state, and the "
                f"device has {describe_bytes(room)}: fix {describe_bytes(needed - room)} less of it there"
            )
    return ""


def _large_node(problem: PartitionProblem) -> str:
    used = node_state_bytes(problem)
    node, room = int(np.argmax(used)), int(problem.device_memory_bytes.max())
    if int(used[node]) <= room:
        return ""
    return (
        f". {describe_node(problem, node)} alone reads {describe_bytes(int(used[node]))} of state, more than any has: "
        f"the largest device lacks {describe_bytes(int(used[node]) - room)}"
    )


def _large_bundle(problem: PartitionProblem, bundles: Bundles) -> str:
    """States that several nodes of a bundle share count once."""
    size = max(1, problem.state_bytes.size)
    pairs = np.unique(bundles.bundle_of_node[problem.use_node] * size + problem.use_state)
    needed = np.bincount(pairs // size, problem.whole_state_bytes[pairs % size], bundles.count)
    bundle, room = int(np.argmax(needed)), int(problem.device_memory_bytes.max())
    if needed[bundle] <= room:
        return ""
    members = bundles.members[bundle]
    return (
        f". {describe_node(problem, members[0])} to {describe_node(problem, members[-1])} have to stay together "
        f"({len(members)} nodes) and read {describe_bytes(int(needed[bundle]))} of state, more than any has: the "
        f"largest device lacks {describe_bytes(int(needed[bundle]) - room)}"
    )


def _all(problem: PartitionProblem) -> str:
    needed = _distinct_bytes(problem, np.arange(problem.num_nodes))
    room = int(problem.device_memory_bytes.sum())
    if needed <= room:
        return ""
    return (
        f". All states together are {describe_bytes(needed)}, and all devices have {describe_bytes(room)}: add at "
        f"least {describe_bytes(needed - room)}"
    )
