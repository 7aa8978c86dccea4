"""Measured times and calibrations on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate, symbol_values_of
from planner.errors import InvalidArgument
from planner.graph.saved import Saved
from protos.v1 import planner_pb2, stage_daemon_pb2

MAX_SYMBOLS = 10_000


def calibration_to_proto(calibration: Calibration) -> planner_pb2.Calibration:
    rates = calibration.rates
    return planner_pb2.Calibration(
        float64_flops_per_second=rates.float64_flops_per_second,
        float32_flops_per_second=rates.float32_flops_per_second,
        float16_flops_per_second=rates.float16_flops_per_second,
        float8_flops_per_second=rates.float8_flops_per_second,
        memory_bytes_per_second=rates.memory_bytes_per_second,
        node_seconds=rates.node_seconds,
        num_nodes=calibration.num_nodes,
        median_error=calibration.median_error,
    )


def calibration_from_proto(message: planner_pb2.Calibration, device_kind: str, profile_id: str = "") -> Calibration:
    return Calibration(
        device_kind=device_kind,
        rates=DeviceKind(
            float64_flops_per_second=message.float64_flops_per_second,
            float32_flops_per_second=message.float32_flops_per_second,
            float16_flops_per_second=message.float16_flops_per_second,
            float8_flops_per_second=message.float8_flops_per_second,
            memory_bytes_per_second=message.memory_bytes_per_second,
            node_seconds=message.node_seconds,
        ),
        num_nodes=message.num_nodes,
        median_error=message.median_error,
        profile_id=profile_id,
    )


def node_times_to_proto(times: MeasuredTimes) -> list[planner_pb2.NodeTime]:
    backward = dict(times.backward_seconds)
    split = {node: halves for node, *halves in times.split_seconds}
    saved, unknown = dict(times.saved), (None, None)
    return [
        planner_pb2.NodeTime(
            node=node,
            seconds=seconds,
            backward_seconds=backward.get(node),
            input_gradient_seconds=split.get(node, unknown)[0],
            weight_gradient_seconds=split.get(node, unknown)[1],
            saved=_saved_to_proto(saved.get(node)),
        )
        for node, seconds in times.seconds
    ]


def _backward_seconds(times: Iterable[planner_pb2.NodeTime]) -> tuple[tuple[int, float], ...]:
    return tuple((entry.node, entry.backward_seconds) for entry in times if entry.HasField("backward_seconds"))


def _split_seconds(times: Iterable[planner_pb2.NodeTime]) -> tuple[tuple[int, float, float], ...]:
    halves = []
    for entry in times:
        has_inputs, has_weights = entry.HasField("input_gradient_seconds"), entry.HasField("weight_gradient_seconds")
        if has_inputs is not has_weights:
            raise InvalidArgument(
                f"node {entry.node} has one of input_gradient_seconds and weight_gradient_seconds; give both or neither"
            )
        if has_inputs:
            halves.append((entry.node, entry.input_gradient_seconds, entry.weight_gradient_seconds))
    return tuple(halves)


def _saved_to_proto(saved: Saved | None) -> planner_pb2.Saved | None:
    if saved is None:
        return None
    return planner_pb2.Saved(inputs=saved.inputs, outputs=saved.outputs, within_bytes=saved.within_bytes)


def saved_from_proto(message: planner_pb2.NodeTime | stage_daemon_pb2.DistinctNode) -> Saved | None:
    """Of a message that may have one."""
    if not message.HasField("saved"):
        return None
    saved = message.saved
    return Saved(inputs=saved.inputs, outputs=saved.outputs, within_bytes=saved.within_bytes)


def _saved(times: Iterable[planner_pb2.NodeTime]) -> tuple[tuple[int, Saved], ...]:
    measured = ((entry.node, saved_from_proto(entry)) for entry in times)
    return tuple((node, saved) for node, saved in measured if saved is not None)


def delivery_to_proto(delivery: Delivery | None) -> planner_pb2.Delivery | None:
    if delivery is None:
        return None
    return planner_pb2.Delivery(input_seconds=delivery.input_seconds, output_seconds=delivery.output_seconds)


def delivery_from_proto(
    message: planner_pb2.ProfileRecord | planner_pb2.ImportTimesRequest | stage_daemon_pb2.ProfileResponse,
) -> Delivery | None:
    """Of a message that may have one. Raises InvalidArgument for seconds that cannot be."""
    if not message.HasField("delivery"):
        return None
    delivery = message.delivery
    return Delivery(input_seconds=delivery.input_seconds, output_seconds=delivery.output_seconds)


def update_to_proto(update: StateUpdate | None) -> planner_pb2.StateUpdate | None:
    if update is None:
        return None
    return planner_pb2.StateUpdate(norm_seconds=update.norm_seconds, optimizer_seconds=update.optimizer_seconds)


def update_from_proto(
    message: planner_pb2.ProfileRecord | planner_pb2.ImportTimesRequest | stage_daemon_pb2.ProfileResponse,
) -> StateUpdate | None:
    """Of a message that may have one. Raises InvalidArgument for seconds that cannot be."""
    if not message.HasField("update"):
        return None
    return StateUpdate(norm_seconds=message.update.norm_seconds, optimizer_seconds=message.update.optimizer_seconds)


def import_to_proto(times: MeasuredTimes, graph_id: str) -> planner_pb2.ImportTimesRequest:
    return planner_pb2.ImportTimesRequest(
        graph_id=graph_id,
        device_kind=times.device_kind,
        symbol_values=dict(times.symbol_values),
        source=times.source,
        times=node_times_to_proto(times),
        delivery=delivery_to_proto(times.delivery),
        update=update_to_proto(times.update),
        num_threads=times.num_threads,
    )


def times_from_import(message: planner_pb2.ImportTimesRequest, graph_id: str) -> MeasuredTimes:
    """`graph_id` is the whole id of the graph that the request names. Raises InvalidArgument, naming the field."""
    if not message.times:
        raise InvalidArgument("times is empty; give at least one node's seconds")
    if len(message.symbol_values) > MAX_SYMBOLS:
        raise InvalidArgument(f"symbol_values has {len(message.symbol_values)} entries, at most {MAX_SYMBOLS}")
    return MeasuredTimes(
        graph_id=graph_id,
        device_kind=message.device_kind.lower(),
        symbol_values=symbol_values_of(message.symbol_values),
        source=message.source,
        seconds=tuple((entry.node, entry.seconds) for entry in message.times),
        backward_seconds=_backward_seconds(message.times),
        split_seconds=_split_seconds(message.times),
        saved=_saved(message.times),
        delivery=delivery_from_proto(message),
        update=update_from_proto(message),
        num_threads=message.num_threads,
    )


def times_from_profile(message: planner_pb2.Profile) -> MeasuredTimes:
    record = message.record
    return MeasuredTimes(
        graph_id=record.graph_id,
        device_kind=record.device_kind,
        symbol_values=symbol_values_of(record.symbol_values),
        source=record.source,
        profile_id=record.id,
        seconds=tuple((entry.node, entry.seconds) for entry in message.times),
        backward_seconds=_backward_seconds(message.times),
        split_seconds=_split_seconds(message.times),
        saved=_saved(message.times),
        delivery=delivery_from_proto(record),
        update=update_from_proto(record),
        num_threads=record.num_threads,
    )
