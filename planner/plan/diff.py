"""What changes from one plan of a graph to another: nodes that run elsewhere, and bytes that have to move for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import InvalidArgument
from planner.graph.ir import Graph
from planner.plan.plan import Plan

# DeviceMove.source_device_id of a state that no device held before.
NOWHERE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMove:
    """Nodes that ran on one set of devices and run on another, in inventory order."""

    source_device_ids: tuple[str, ...]
    target_device_ids: tuple[str, ...]
    num_nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMove:
    """States that a device holds now and did not before, and a device that held them."""

    source_device_id: str
    target_device_id: str
    num_states: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """`dropped_bytes` [device id]: states that it held before and no longer needs."""

    num_nodes: int
    num_nodes_moved: int
    node_moves: tuple[NodeMove, ...]
    state_moves: tuple[StateMove, ...]
    moved_bytes: int
    dropped_bytes: tuple[tuple[str, int], ...]
    num_stages: tuple[int, int]
    bottleneck_seconds: tuple[float, float]
    latency_seconds: tuple[float, float]
    step_seconds: tuple[float | None, float | None]


def diff_plans(graph: Graph, before: Plan, after: Plan) -> PlanDiff:
    """Both plans are of `graph`, or InvalidArgument. Linear in nodes and states. A tie group counts once per device."""
    if before.graph_id != after.graph_id:
        raise InvalidArgument(
            f"the plans are of different graphs, {before.graph_id[:12]} and {after.graph_id[:12]}; "
            f"compare plans of one graph"
        )
    node_moves = _node_moves(before, after)
    held_before, held_after = _held(graph, before), _held(graph, after)
    sizes = _state_bytes(graph)
    state_moves = _state_moves(held_before, held_after, sizes)
    dropped = {
        device: sum(sizes[state] for state in states - held_after.get(device, frozenset()))
        for device, states in held_before.items()
    }
    return PlanDiff(
        num_nodes=len(graph.nodes),
        num_nodes_moved=sum(move.num_nodes for move in node_moves),
        node_moves=node_moves,
        state_moves=state_moves,
        moved_bytes=sum(move.size_bytes for move in state_moves),
        dropped_bytes=tuple((device, size) for device, size in dropped.items() if size),
        num_stages=(len(before.stages), len(after.stages)),
        bottleneck_seconds=(before.bottleneck_seconds, after.bottleneck_seconds),
        latency_seconds=(before.latency_seconds, after.latency_seconds),
        step_seconds=(before.step_seconds, after.step_seconds),
    )


def _node_moves(before: Plan, after: Plan) -> tuple[NodeMove, ...]:
    moves: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    pairs = zip(_devices_of_nodes(before), _devices_of_nodes(after), strict=True)
    moves.update((source, target) for source, target in pairs if set(source) != set(target))
    return tuple(
        NodeMove(source_device_ids=source, target_device_ids=target, num_nodes=count)
        for (source, target), count in moves.items()
    )


def _devices_of_nodes(plan: Plan) -> list[tuple[str, ...]]:
    devices: list[tuple[str, ...]] = [()] * plan.num_nodes
    for stage in plan.stages:
        for start, end in stage.node_ranges:
            devices[start:end] = [stage.device_ids] * (end - start)
    return devices


def _held(graph: Graph, plan: Plan) -> dict[str, frozenset[str]]:
    """Device id to the storages that it holds, each under the first name of its tie group."""
    storage = _storage_of_state(graph)
    states_of_device: dict[str, set[str]] = {}
    for stage in plan.stages:
        for device_id in stage.device_ids:
            states_of_device.setdefault(device_id, set()).update(storage[name] for name in stage.states)
    return {device_id: frozenset(states) for device_id, states in states_of_device.items()}


def _storage_of_state(graph: Graph) -> dict[str, str]:
    first_of_group: dict[int, str] = {}
    return {
        state.name: first_of_group.setdefault(state.tie_group, state.name) if state.tie_group else state.name
        for state in graph.states
    }


def _state_bytes(graph: Graph) -> dict[str, int]:
    """Dims of states are constants."""
    values = graph.values_by_id()
    return {state.name: values[state.value_id].size_bytes({}) for state in graph.states}


def _state_moves(
    before: Mapping[str, frozenset[str]], after: Mapping[str, frozenset[str]], sizes: Mapping[str, int]
) -> tuple[StateMove, ...]:
    holder = {state: device for device, states in reversed(list(before.items())) for state in states}
    states_of_move: dict[tuple[str, str], list[str]] = {}
    for device, states in after.items():
        for state in sorted(states - before.get(device, frozenset())):
            states_of_move.setdefault((holder.get(state, NOWHERE), device), []).append(state)
    return tuple(
        StateMove(
            source_device_id=source,
            target_device_id=target,
            num_states=len(states),
            size_bytes=sum(sizes[state] for state in states),
        )
        for (source, target), states in states_of_move.items()
    )
