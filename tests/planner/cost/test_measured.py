"""Measured times in place of predicted ones, on random programs."""

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.buckets import mean_costs
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import device_kind
from planner.cost.inventory import Device
from planner.cost.measured import MeasuredTimes, nearest
from planner.cost.roofline import node_costs
from planner.cost.sources import CostSource, RateSource
from planner.errors import InvalidArgument
from planner.graph.saved import Saved, most_saved
from tests.builders.random_graphs import random_graph

GRAPH = random_graph(3, 30)
HINTS = GRAPH.hints()
CPU = Device(id="c", kind="cpu", host="h", memory_bytes=1 << 30)
GPU = Device(id="g", kind="H200", host="h", memory_bytes=1 << 30)


def times(seconds: dict[int, float], kind: str = "cpu", **symbol_values: int) -> MeasuredTimes:
    return MeasuredTimes(
        graph_id="",
        device_kind=kind,
        seconds=tuple(sorted(seconds.items())),
        symbol_values=tuple(sorted(symbol_values.items())),
    )


def test_measured_nodes_take_their_time_and_others_the_roofline() -> None:
    predicted = node_costs(GRAPH, [CPU], HINTS).seconds
    costs = node_costs(GRAPH, [CPU], HINTS, [times({2: 0.5, 7: 0.25})])
    expected = predicted.copy()
    expected[0, [2, 7]] = 0.5, 0.25
    np.testing.assert_array_equal(costs.seconds, expected)
    assert costs.sources == (
        CostSource(device_kind="cpu", num_measured=2, num_nodes=len(GRAPH.nodes), rates=RateSource.ROOFLINE),
    )


def test_times_of_one_kind_leave_another_alone() -> None:
    costs = node_costs(GRAPH, [CPU, GPU], HINTS, [times({0: 0.5}, "h200")])
    assert costs.seconds[0, 0] != 0.5
    assert costs.seconds[1, 0] == 0.5
    assert [source.num_measured for source in costs.sources] == [0, 1]


def test_nearest_point_counts_and_is_scaled_by_the_work() -> None:
    everything = range(len(GRAPH.nodes))
    points = [times(dict.fromkeys(everything, 1.0), batch=2), times(dict.fromkeys(everything, 8.0), batch=32)]
    (batch,) = (symbol.id for symbol in GRAPH.symbols if symbol.name == "batch")
    exact = node_costs(GRAPH, [CPU], {**HINTS, batch: 32}, points)
    assert (exact.seconds == 8.0).all()
    assert not exact.sources[0].scaled
    between = node_costs(GRAPH, [CPU], {**HINTS, batch: 24}, points)
    assert between.sources[0].scaled
    assert ((between.seconds > 5.9) & (between.seconds <= 8.0)).all()


def test_distance_is_in_ratios_and_the_first_of_equals_counts() -> None:
    assert nearest([{1: 1}, {1: 100}], {1: 20}) == 1
    assert nearest([{1: 4}, {1: 16}], {1: 8}) == 0
    assert nearest([{1: 1, 2: 64}, {1: 8, 2: 8}], {1: 2, 2: 32}) == 0


def test_calibration_of_the_kind_predicts_what_was_not_measured() -> None:
    rates = device_kind("t4")
    calibration = Calibration(device_kind="cpu", rates=rates, num_nodes=50, median_error=0.1)
    costs = node_costs(GRAPH, [CPU], HINTS, (), [calibration])
    expected = node_costs(GRAPH, [Device(id="t", kind="t4", host="h", memory_bytes=1)], HINTS)
    np.testing.assert_array_equal(costs.seconds, expected.seconds)
    assert costs.sources[0].rates is RateSource.CALIBRATED


def test_rates_given_with_a_device_come_before_a_calibration() -> None:
    calibration = Calibration(device_kind="cpu", rates=device_kind("t4"), num_nodes=50, median_error=0.1)
    device = Device(id="c", kind="cpu", host="h", memory_bytes=1, flops_per_second=1e12, memory_bytes_per_second=1e6)
    slow = node_costs(GRAPH, [device], HINTS, (), [calibration])
    assert slow.sources[0].rates is RateSource.GIVEN
    assert slow.seconds.sum() > node_costs(GRAPH, [CPU], HINTS, (), [calibration]).seconds.sum()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (times({len(GRAPH.nodes): 1.0}), f"node {len(GRAPH.nodes)}, and the graph has {len(GRAPH.nodes)} nodes"),
        (times({0: 1.0}, bach=2), "'bach'; the graph's dynamic dimensions are 'batch'"),
    ],
)
def test_times_of_another_graph_are_refused(wrong: MeasuredTimes, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        node_costs(GRAPH, [CPU], HINTS, [wrong])


@pytest.mark.parametrize(
    ("seconds", "kind", "says"),
    [
        (((0, -1.0),), "cpu", "node 0: seconds is -1.0"),
        (((0, float("inf")),), "cpu", "needs 0 to 86400"),
        (((1, 1.0), (0, 1.0)), "cpu", "node 0 stands after node 1"),
        (((0, 1.0), (0, 1.0)), "cpu", "node 0 stands after node 0"),
        (((0, 1.0),), "", "device_kind is empty"),
        (((0, 1.0),), "x" * 300, "printable"),
    ],
)
def test_impossible_times_are_refused(seconds: tuple[tuple[int, float], ...], kind: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        MeasuredTimes(graph_id="", device_kind=kind, seconds=seconds)


def test_backward_passes_are_of_nodes_with_a_forward_one() -> None:
    with pytest.raises(InvalidArgument, match="node 1 has backward_seconds and no seconds"):
        MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 1.0),), backward_seconds=((1, 1.0),))
    with pytest.raises(InvalidArgument, match=r"node 0: backward_seconds is -1\.0"):
        MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 1.0),), backward_seconds=((0, -1.0),))
    with pytest.raises(InvalidArgument, match="node 0 has its backward pass in two and no backward_seconds"):
        MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 1.0),), split_seconds=((0, 1.0, 1.0),))
    with pytest.raises(InvalidArgument, match=r"node 0: weight_gradient_seconds is -1\.0"):
        MeasuredTimes(
            graph_id="",
            device_kind="cpu",
            seconds=((0, 1.0),),
            backward_seconds=((0, 1.0),),
            split_seconds=((0, 1.0, -1.0),),
        )
    with pytest.raises(InvalidArgument, match="node 0 has what its backward pass keeps and no backward_seconds"):
        MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 1.0),), saved=((0, NOTHING),))


NOTHING = Saved(inputs=False, outputs=False, within_bytes=0)


def kept_at(saved: dict[int, Saved], kind: str = "cpu", **symbol_values: int) -> MeasuredTimes:
    seconds = dict.fromkeys(sorted(saved), 1.0)
    return replace(
        times(seconds, kind, **symbol_values),
        backward_seconds=tuple(seconds.items()),
        saved=tuple((node, saved[node]) for node in seconds),
    )


def test_what_is_kept_is_as_measured_and_elsewhere_by_rule() -> None:
    by_rule = node_costs(GRAPH, [CPU, GPU], HINTS).saved_by_nodes(GRAPH)
    noise, all_of_it = replace(NOTHING, within_bytes=10), Saved(inputs=True, outputs=True, within_bytes=4)
    on_cpu = kept_at({2: noise, 7: noise})
    assert node_costs(GRAPH, [CPU], HINTS, [on_cpu]).saved_by_nodes(GRAPH) == [
        noise if index in (2, 7) else one for index, one in enumerate(by_rule)
    ]
    # On devices of several kinds what is enough for each.
    both = node_costs(GRAPH, [CPU, GPU], HINTS, [on_cpu, kept_at({7: all_of_it}, "h200")]).saved_by_nodes(GRAPH)
    assert both[7] == replace(all_of_it, within_bytes=10)
    assert both[2] == most_saved([noise, by_rule[2]])


def test_what_is_made_within_grows_with_the_work() -> None:
    (batch,) = (symbol.id for symbol in GRAPH.symbols if symbol.name == "batch")
    noise = replace(NOTHING, within_bytes=1000)
    measured = [kept_at(dict.fromkeys(range(len(GRAPH.nodes)), noise), batch=2)]
    eight = node_costs(GRAPH, [CPU], {**HINTS, batch: 8}, measured)
    kept = eight.saved_by_nodes(GRAPH)
    assert all(not (one.inputs or one.outputs) and one.within_bytes <= 4000 for one in kept)
    assert max(one.within_bytes for one in kept) > 3900
    mixed = mean_costs([(node_costs(GRAPH, [CPU], {**HINTS, batch: 2}, measured), 0.5), (eight, 0.5)])
    assert mixed.saved_by_nodes(GRAPH) == kept


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            CostSource(device_kind="a", num_measured=9, num_nodes=9, num_backward=7, rates=RateSource.CALIBRATED),
            "measured 9 of 9 nodes, 7 of them backward too",
        ),
        (CostSource(device_kind="a", num_measured=0, num_nodes=9, rates=RateSource.ROOFLINE), "roofline"),
        (
            CostSource(device_kind="a", num_measured=9, num_nodes=9, rates=RateSource.CALIBRATED),
            "measured 9 of 9 nodes",
        ),
        (
            CostSource(device_kind="a", num_measured=4, num_nodes=9, rates=RateSource.CALIBRATED, scaled=True),
            "measured 4 of 9 nodes (scaled), others calibrated",
        ),
        (
            CostSource(
                device_kind="a",
                num_measured=4,
                num_nodes=9,
                rates=RateSource.CALIBRATED,
                scaled=True,
                measured_profile_ids=("prof-2", "prof-1"),
                calibration_profile_ids=("prof-3",),
            ),
            "measured 4 of 9 nodes (scaled, prof-2, prof-1), others calibrated (prof-3)",
        ),
        (
            CostSource(
                device_kind="a",
                num_measured=9,
                num_nodes=9,
                rates=RateSource.CALIBRATED,
                scaled=True,
                measured_profile_ids=("prof-1",),
                calibration_profile_ids=("prof-3",),
            ),
            "measured 9 of 9 nodes (prof-1), scaled by calibrated (prof-3)",
        ),
        (
            CostSource(device_kind="a", num_measured=0, num_nodes=9, rates=RateSource.GIVEN),
            "given rates",
        ),
        (
            CostSource(
                device_kind="a",
                num_measured=0,
                num_nodes=9,
                rates=RateSource.GIVEN,
                calibration_profile_ids=("prof-3",),
            ),
            "given rates, cost of a call calibrated (prof-3)",
        ),
    ],
)
def test_source_in_words(source: CostSource, text: str) -> None:
    assert source.text() == text


def test_source_names_each_profile_once() -> None:
    source = CostSource(
        device_kind="a",
        num_measured=1,
        num_nodes=9,
        rates=RateSource.CALIBRATED,
        measured_profile_ids=("prof-2", "prof-1"),
        calibration_profile_ids=("prof-3", "prof-1"),
    )
    assert source.profile_ids == ("prof-2", "prof-1", "prof-3")
