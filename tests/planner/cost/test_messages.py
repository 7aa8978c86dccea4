"""Messages between CPUs of a host: from measured deliveries, where nobody has said what links take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory, LinkSpeed
from planner.cost.link_arrays import link_arrays
from planner.cost.measured import Delivery, MeasuredTimes
from planner.cost.messages import MOST_MESSAGE_SECONDS, handover_between, link_between, message_seconds
from planner.cost.sources import CostSource, RateSource
from planner.partition.objective import Training
from planner.plan.explain import explain
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan
from planner.planning import make_plan
from planner.schedule.prediction import predict
from tests.builders.random_graphs import random_graph
from tests.planner.schedule.test_reschedule import trained

MEASURED, SLOWER = 80e-6, 120e-6


def source(kind: str, seconds: float | None) -> CostSource:
    return CostSource(device_kind=kind, num_measured=1, num_nodes=1, rates=RateSource.ROOFLINE, message_seconds=seconds)


SOURCES = (source("cpu", MEASURED), source("CPU-old", SLOWER), source("h100", MEASURED), source("cpu-new", None))


def device(device_id: str, kind: str = "cpu", host: str = "h") -> Device:
    return Device(id=device_id, kind=kind, host=host, memory_bytes=1 << 40)


GIVEN = LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-3)
INVENTORY = Inventory(
    devices=(
        device("a"),
        device("b"),
        device("old", "CPU-old"),
        device("gpu", "h100"),
        device("unmeasured", "cpu-new"),
        device("elsewhere", host="other"),
    ),
    links={("b", "a"): GIVEN},
)


@pytest.mark.parametrize(
    ("delivery", "input_bytes", "output_bytes", "seconds"),
    [
        ((100e-6, 60e-6), 0, 0, 60e-6),
        ((100e-6, 60e-6), 500_000, 0, 50e-6),
        # What is beside megabytes is hidden by them.
        ((100e-6, 900e-6), 0, 8_500_000, 100e-6),
        ((900e-6, 100e-6), 8_500_000, 0, 100e-6),
        ((5e-6, 60e-6), 500_000, 0, 60e-6),
        ((900e-6, 880e-6), 8_500_000, 8_500_000, 30e-6),
        ((5e-6, 6e-6), 500_000, 500_000, 0.0),
        ((1.0, 1.0), 0, 0, MOST_MESSAGE_SECONDS),
    ],
)
def test_message_is_the_lesser_delivery_beside_its_bytes(
    delivery: tuple[float, float], input_bytes: int, output_bytes: int, seconds: float
) -> None:
    measured = Delivery(input_seconds=delivery[0], output_seconds=delivery[1])
    assert message_seconds(measured, input_bytes, output_bytes) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    ("source_id", "target_id", "seconds"),
    [
        ("a", "b", MEASURED),
        ("b", "a", GIVEN.latency_seconds),
        ("a", "old", SLOWER),
        ("old", "a", SLOWER),
        ("a", "gpu", DEFAULT_LINK.latency_seconds),
        ("a", "unmeasured", DEFAULT_LINK.latency_seconds),
        ("a", "elsewhere", DEFAULT_LINK.latency_seconds),
    ],
)
def test_cpus_of_a_host_whose_link_nobody_gave_take_what_was_measured(
    source_id: str, target_id: str, seconds: float
) -> None:
    link = link_between(INVENTORY, SOURCES, source_id, target_id)
    assert link.latency_seconds == seconds
    assert link.bytes_per_second == (GIVEN if seconds == GIVEN.latency_seconds else DEFAULT_LINK).bytes_per_second
    # Of a measured message one end follows the other; given and usual ones are on their way once.
    is_measured = seconds in (MEASURED, SLOWER)
    assert handover_between(INVENTORY, SOURCES, source_id, target_id) == (seconds if is_measured else 0.0)


def test_a_default_that_somebody_gave_stays() -> None:
    inventory = replace(INVENTORY, default_link=LinkSpeed(bytes_per_second=1e10, latency_seconds=7e-6))
    assert link_between(inventory, SOURCES, "a", "b") == inventory.default_link


@pytest.mark.parametrize("default_link", [DEFAULT_LINK, GIVEN])
def test_arrays_hold_each_pair(default_link: LinkSpeed) -> None:
    inventory = replace(INVENTORY, default_link=default_link)
    latency, per_byte, handover = link_arrays(inventory, SOURCES)
    ids = [one.id for one in inventory.devices]
    for at, first in enumerate(ids):
        for other, second in enumerate(ids):
            link = link_between(inventory, SOURCES, first, second)
            speed = (latency[at, other], per_byte[at, other], handover[at, other])
            between = handover_between(inventory, SOURCES, first, second)
            expected = (link.latency_seconds, 1 / link.bytes_per_second, between)
            np.testing.assert_allclose(speed, (0.0, 0.0, 0.0) if first == second else expected)


def planned(delivery: Delivery | None, training: Training | None = None) -> Plan:
    graph = trained(random_graph(1, 14))
    seconds = tuple((node, 1e-3) for node in range(len(graph.nodes)))
    times = MeasuredTimes(graph_id="", device_kind="cpu", seconds=seconds, delivery=delivery)
    inventory = Inventory(devices=(device("a"), device("b")))
    return make_plan(graph, "id", inventory, PlanOptions(mode=BalancedMode(num_stages=2), training=training), [times])


def test_plans_count_it_where_their_simulations_do_and_say_it() -> None:
    delivery = Delivery(input_seconds=200e-6, output_seconds=200e-6)
    for training in (None, Training(microbatches=3)):
        before, after = planned(None, training), planned(delivery, training)
        directions = 1 if training is None else 1 + bool(after.edges[0].gradient_value_ids)
        assert after.cost_sources[0].message_seconds == pytest.approx(200e-6, rel=1e-2)
        for earlier, later in zip(before.stages, after.stages, strict=True):
            more = later.communication_seconds - earlier.communication_seconds
            assert more == pytest.approx(directions * 150e-6, rel=2e-2)
        if training is not None:
            assert after.step_seconds == pytest.approx(predict(after).makespan_seconds)
        [line] = [line for line in explain(after) if "an end of a message between two cpu of a host: 20" in line]
        assert line.endswith(", in steps one end after the other") is (training is not None)
        assert not any("an end of a message" in line for line in explain(before))
