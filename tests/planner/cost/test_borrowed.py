"""Rates from profiles of other graphs: which of them count, before and after the graph's own, and what is recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from planner.cost.borrowed import named_rates, newest_rates
from planner.cost.calibrate import calibrate
from planner.cost.calibration import Calibration
from planner.cost.device_kinds import device_kind
from planner.cost.inventory import Device
from planner.cost.kind_costs import roofline_seconds
from planner.cost.measured import MeasuredTimes
from planner.cost.roofline import NodeCosts, node_costs
from planner.cost.sources import RateSource
from planner.cost.work import graph_work
from planner.errors import OptionsError
from planner.graph.ir import Graph
from tests.builders.random_graphs import random_graph

GRAPH = random_graph(3, 30)
HINTS = GRAPH.hints()
CPU = Device(id="c", kind="cpu", host="h", memory_bytes=1 << 30)
SLOW = Calibration(device_kind="CPU", rates=device_kind("t4"), num_nodes=9, median_error=0.1, profile_id="prof-slow")
QUICK = replace(SLOW, rates=device_kind("h200"), profile_id="prof-quick")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    id: str
    device_kind: str
    calibration: Calibration | None


def stored(name: str, kind: str, *, fitted: bool = True) -> Stored:
    calibration = Calibration(device_kind=kind, rates=device_kind("t4"), num_nodes=9, median_error=0.1)
    return Stored(id=name, device_kind=kind, calibration=calibration if fitted else None)


def own_times(*profile_ids: str, num_nodes: int = 20) -> list[MeasuredTimes]:
    """Twice what the roofline says, of the first nodes that run anything."""
    work = graph_work(GRAPH, HINTS)
    seconds = 2 * roofline_seconds(work, device_kind("cpu"))
    running = [index for index in range(len(GRAPH.nodes)) if seconds[index] > 0][:num_nodes]
    return [
        MeasuredTimes(
            graph_id="",
            device_kind="cpu",
            seconds=tuple((index, float(seconds[index])) for index in running),
            profile_id=profile_id,
        )
        for profile_id in profile_ids
    ]


def seconds_at(rates: Calibration | None, graph: Graph = GRAPH) -> np.ndarray:
    return roofline_seconds(graph_work(graph, HINTS), rates.rates if rates else device_kind("cpu"))


def ids_of(costs: NodeCosts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    (source,) = costs.sources
    return source.measured_profile_ids, source.calibration_profile_ids


def test_named_profiles_hand_over_their_rates_under_their_ids() -> None:
    rates = named_rates([stored("prof-2", "h200"), stored("prof-1", "CPU")], ["cpu", "H200", "t4"])
    assert [(one.profile_id, one.device_kind) for one in rates] == [("prof-2", "h200"), ("prof-1", "CPU")]


@pytest.mark.parametrize(
    ("profiles", "says"),
    [
        ([stored("prof-1", "cpu", fitted=False)], "'prof-1' has too few measured nodes"),
        ([stored("prof-1", "t4")], "'prof-1' is of kind 't4'; the devices are 'cpu', 'h200'"),
        ([stored("prof-1", "cpu"), stored("prof-2", "CPU")], "'prof-2' is of kind 'cpu', as is 'prof-1'"),
    ],
)
def test_named_profiles_that_do_not_serve_are_refused(profiles: list[Stored], says: str) -> None:
    with pytest.raises(OptionsError, match=says) as refused:
        named_rates(profiles, ["cpu", "H200"])
    assert refused.value.metadata["field"] == "options.rates_from_profiles"


def test_newest_of_each_kind_is_the_first_that_has_rates() -> None:
    newest_first = [
        stored("prof-5", "h200", fitted=False),
        stored("prof-4", "cpu"),
        stored("prof-3", "CPU"),
        stored("prof-2", "h200"),
        stored("prof-1", "t4", fitted=False),
    ]
    assert [one.profile_id for one in newest_rates(newest_first)] == ["prof-4", "prof-2"]


def test_first_calibration_of_a_kind_counts_and_is_recorded() -> None:
    costs = node_costs(GRAPH, [CPU], HINTS, (), [QUICK, SLOW])
    np.testing.assert_array_equal(costs.seconds[0], seconds_at(QUICK))
    assert ids_of(costs) == ((), ("prof-quick",))
    other = node_costs(GRAPH, [CPU], HINTS, (), [replace(QUICK, device_kind="l4"), SLOW])
    np.testing.assert_array_equal(other.seconds[0], seconds_at(SLOW))


def test_rates_of_the_graphs_own_times_come_before_those_of_others() -> None:
    times = own_times("prof-own")
    alone = node_costs(GRAPH, [CPU], HINTS, times)
    costs = node_costs(GRAPH, [CPU], HINTS, times, [QUICK])
    np.testing.assert_array_equal(costs.seconds, alone.seconds)
    assert costs.sources == alone.sources
    assert ids_of(costs) == (("prof-own",), ("prof-own",))
    assert costs.sources[0].rates is RateSource.CALIBRATED


def test_rates_of_a_named_profile_come_before_all() -> None:
    times = own_times("prof-own", num_nodes=12)
    costs = node_costs(GRAPH, [CPU], HINTS, times, [QUICK, SLOW], ["prof-slow"])
    expected = seconds_at(SLOW)
    for index, seconds in times[0].seconds:
        expected[index] = seconds
    np.testing.assert_array_equal(costs.seconds[0], expected)
    assert ids_of(costs) == (("prof-own",), ("prof-slow",))


def test_too_few_own_times_borrow_rates_and_record_both() -> None:
    times = own_times("prof-2", num_nodes=3)
    costs = node_costs(GRAPH, [CPU], HINTS, times, [SLOW])
    expected = seconds_at(SLOW)
    for index, seconds in times[0].seconds:
        expected[index] = seconds
    np.testing.assert_array_equal(costs.seconds[0], expected)
    assert ids_of(costs) == (("prof-2",), ("prof-slow",))


def test_without_rates_of_others_nothing_but_own_times_is_recorded() -> None:
    assert ids_of(node_costs(GRAPH, [CPU], HINTS)) == ((), ())
    costs = node_costs(GRAPH, [CPU], HINTS, own_times("prof-2", num_nodes=3))
    assert ids_of(costs) == (("prof-2",), ())
    assert costs.sources[0].rates is RateSource.ROOFLINE


def test_every_own_profile_of_the_kind_is_recorded_as_it_stands() -> None:
    first, second = own_times("prof-9", "prof-1")
    foreign = replace(first, device_kind="t4", profile_id="prof-t4")
    costs = node_costs(GRAPH, [CPU], HINTS, [first, foreign, replace(second, symbol_values=(("batch", 2),))])
    assert ids_of(costs) == (("prof-9", "prof-1"), ("prof-9", "prof-1"))


def test_times_that_are_stored_nowhere_have_no_id_to_record() -> None:
    assert ids_of(node_costs(GRAPH, [CPU], HINTS, own_times(""))) == ((), ())
    fitted = calibrate("cpu", [(graph_work(GRAPH, HINTS), 2 * seconds_at(None))])
    assert fitted is not None
    assert ids_of(node_costs(GRAPH, [CPU], HINTS, (), [fitted])) == ((), ())


def test_given_rates_still_take_the_cost_of_a_call_from_a_calibration() -> None:
    with_rates = replace(CPU, flops_per_second=1e12, memory_bytes_per_second=1e10)
    costs = node_costs(GRAPH, [with_rates], HINTS, (), [SLOW])
    work = graph_work(GRAPH, HINTS)
    np.testing.assert_array_equal(costs.seconds[0], roofline_seconds(work, SLOW.rates, 1e12, 1e10))
    assert costs.sources[0].rates is RateSource.GIVEN
    assert ids_of(costs) == ((), ("prof-slow",))
