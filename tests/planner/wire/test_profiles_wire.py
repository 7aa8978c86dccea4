"""Measured times and rates come back from the wire as they went, and what is wrong is named."""

from __future__ import annotations

import pytest

from planner.cost.calibration import Calibration
from planner.cost.device_kinds import DeviceKind
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate
from planner.errors import InvalidArgument
from planner.graph.saved import Saved
from planner.wire.profiles import (
    calibration_from_proto,
    calibration_to_proto,
    import_to_proto,
    times_from_import,
    times_from_profile,
)
from protos.v1 import planner_pb2

TIMES = MeasuredTimes(
    graph_id="ab" * 32,
    device_kind="h200",
    symbol_values=(("batch", 2**53 + 1), ("sequence", 128)),
    source="a stopwatch",
    seconds=((0, 0.1), (2**40 + 1, 1 / 3)),
    backward_seconds=((2**40 + 1, 2 / 3),),
    split_seconds=((2**40 + 1, 0.0, 0.7),),
    saved=((2**40 + 1, Saved(inputs=False, outputs=True, within_bytes=2**60 + 1)),),
    delivery=Delivery(input_seconds=0.1, output_seconds=0.0),
    update=StateUpdate(norm_seconds=0.1 + 0.2, optimizer_seconds=0.0),
)


def test_rates_come_back() -> None:
    calibration = Calibration(
        device_kind="h200",
        rates=DeviceKind(
            float64_flops_per_second=1.5,
            float32_flops_per_second=2.5,
            float16_flops_per_second=3.5,
            float8_flops_per_second=4.5,
            memory_bytes_per_second=5.5,
            node_seconds=6.5,
        ),
        num_nodes=2**53 + 1,
        median_error=0.1,
        profile_id="prof-1",
    )
    message = planner_pb2.Calibration.FromString(calibration_to_proto(calibration).SerializeToString())
    assert calibration_from_proto(message, "h200", "prof-1") == calibration
    assert calibration_from_proto(message, "h200").profile_id == ""


def test_given_times_come_back_under_the_graph_that_was_found_and_the_kind_in_small_letters() -> None:
    message = import_to_proto(TIMES, "abab")
    assert message.graph_id == "abab"
    message = planner_pb2.ImportTimesRequest.FromString(message.SerializeToString())
    assert times_from_import(message, TIMES.graph_id) == TIMES
    message.device_kind = "H200"
    assert times_from_import(message, TIMES.graph_id).device_kind == "h200"


def test_stored_times_come_back_with_the_profile_that_they_are() -> None:
    record = planner_pb2.ProfileRecord(
        id="prof-1",
        graph_id=TIMES.graph_id,
        device_kind=TIMES.device_kind,
        symbol_values=dict(TIMES.symbol_values),
        source=TIMES.source,
    )
    times = [planner_pb2.NodeTime(node=node, seconds=seconds) for node, seconds in TIMES.seconds]
    times_record = times_from_profile(planner_pb2.Profile(record=record, times=times))
    assert times_record.profile_id == "prof-1"
    assert (times_record.graph_id, times_record.device_kind, times_record.symbol_values) == (
        TIMES.graph_id,
        "h200",
        TIMES.symbol_values,
    )
    assert (times_record.source, times_record.seconds) == (TIMES.source, TIMES.seconds)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (planner_pb2.ImportTimesRequest(device_kind="cpu"), "times is empty; give at least one"),
        (
            planner_pb2.ImportTimesRequest(
                device_kind="cpu",
                times=[planner_pb2.NodeTime()],
                symbol_values={f"s{index}": 1 for index in range(10_001)},
            ),
            "symbol_values has 10001 entries, at most 10000",
        ),
        (planner_pb2.ImportTimesRequest(times=[planner_pb2.NodeTime()]), "device_kind is empty"),
        (
            planner_pb2.ImportTimesRequest(device_kind="cpu", times=[planner_pb2.NodeTime(node=3, seconds=-1.0)]),
            r"node 3: seconds is -1\.0",
        ),
    ],
)
def test_times_that_cannot_be_are_refused(message: planner_pb2.ImportTimesRequest, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        times_from_import(message, "abab")
