"""CPUs that divide their host's cores: what a stage then takes, how many of them a plan uses, and that it says so."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from planner.cost.inventory import DEFAULT_LINK, Device, Inventory
from planner.cost.measured import MeasuredTimes
from planner.cost.shared_cores import MAX_CHOICES, choices_are_all, device_choices, workers_on_cores
from planner.errors import Infeasible
from planner.plan.options import BalancedMode, CutMode, Mode, OptimalMode, PlanOptions, SingleMode
from planner.planning import explain_plan, make_plan, plan_costs
from tests.contract.graphs import linear_chain

GRAPH = linear_chain(6, 1024)
TWO_STAGES = PlanOptions(mode=OptimalMode(num_stages=2))


def cpu(name: str, host: str = "here", memory_bytes: int = 1 << 40, *, shares_cores: bool = True) -> Device:
    return Device(id=name, kind="cpu", host=host, memory_bytes=memory_bytes, shares_cores=shares_cores)


def inventory(*devices: Device) -> Inventory:
    return Inventory(devices=devices)


def test_workers_are_those_of_the_devices_in_use_on_the_host() -> None:
    devices = [cpu("a"), cpu("b"), cpu("c", "there"), cpu("d", shares_cores=False), cpu("e")]
    assert workers_on_cores(devices) == (3, 3, 1, 1, 3)
    assert workers_on_cores(devices, {0}) == (1, 2, 1, 1, 2)
    assert workers_on_cores(devices, ()) == (1, 1, 1, 1, 1)
    assert workers_on_cores(devices, {0, 2, 3, 4}) == (2, 3, 1, 1, 2)


def test_a_share_of_the_cores_makes_all_but_the_start_of_a_call_longer() -> None:
    alone, three = (
        plan_costs(GRAPH, inventory(*map(cpu, "abc")), PlanOptions(), used=used).seconds[0] for used in ((), None)
    )
    start = 2e-6
    assert np.allclose(three - start, 3 * (alone - start), rtol=1e-12)
    measured = [MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 0.5), (1, start / 2)))]
    of_two = plan_costs(GRAPH, inventory(*map(cpu, "ab")), PlanOptions(), measured).seconds[0]
    assert of_two[:2].tolist() == pytest.approx([2 * 0.5 - start, start / 2])


def test_what_was_measured_with_the_threads_of_a_worker_is_no_longer_where_others_are() -> None:
    measured = MeasuredTimes(graph_id="", device_kind="cpu", seconds=((0, 0.5), (1, 0.25)), num_threads=1)
    for devices in ("a", "abc"):
        costs = plan_costs(GRAPH, inventory(*map(cpu, devices)), PlanOptions(), [measured])
        assert costs.seconds[0, :2].tolist() == [0.5, 0.25]


def test_two_cpus_of_one_host_are_no_faster_than_one() -> None:
    together = make_plan(GRAPH, "id", inventory(cpu("a"), cpu("b")), PlanOptions())
    assert [stage.device_ids for stage in together.stages] == [("a",)]
    assert together.shares_of_cores == ()
    assert together.gap == 0.0
    apart = make_plan(GRAPH, "id", inventory(cpu("a"), cpu("b", "there")), PlanOptions())
    assert len(apart.stages) == 2
    assert apart.shares_of_cores == ()
    assert apart.bottleneck_seconds < 0.6 * together.bottleneck_seconds


def test_a_plan_that_needs_both_says_that_they_divide_the_cores() -> None:
    shared = make_plan(GRAPH, "id", inventory(cpu("a"), cpu("b")), TWO_STAGES)
    own = make_plan(GRAPH, "id", inventory(cpu("a", "one"), cpu("b", "two")), TWO_STAGES)
    line = "a, b divide the cores of here: each computes with 1/2 of them"
    assert shared.shares_of_cores == (line,)
    assert line in explain_plan(GRAPH, shared)
    for one, other in zip(shared.stages, own.stages, strict=True):
        starts = one.num_nodes * 2e-6
        assert one.compute_seconds - starts == pytest.approx(2 * (other.compute_seconds - starts), rel=1e-9)


def test_what_explains_a_plan_counts_the_shares_that_the_plan_has() -> None:
    """The next best place for the cut is no better than the plan: with all cores it would seem to be."""
    plan = make_plan(GRAPH, "id", inventory(cpu("a"), cpu("b"), cpu("c")), TWO_STAGES)
    [line] = [line for line in explain_plan(GRAPH, plan) if "next best" in line]
    assert "(-" not in line


def test_memory_decides_how_many_of_a_host_are_used() -> None:
    """A layer has 4 MiB: two devices are needed, and the largest two do with one share less than all three."""
    sizes = {"small": 9, "large": 18, "mid": 17}
    devices = [cpu(name, memory_bytes=size << 20) for name, size in sizes.items()]
    plan = make_plan(GRAPH, "id", inventory(*devices), PlanOptions())
    assert {device for stage in plan.stages for device in stage.device_ids} == {"large", "mid"}
    with pytest.raises(Infeasible):
        make_plan(GRAPH, "id", inventory(*devices[:1]), PlanOptions())


def test_a_module_that_is_fixed_keeps_its_device_among_those_planned_over() -> None:
    inventory_of_three = inventory(cpu("a"), cpu("b"), cpu("c"))
    plan = make_plan(GRAPH, "id", inventory_of_three, PlanOptions(fixed=((GRAPH.nodes[0].module_path, "c"),)))
    assert {device for stage in plan.stages for device in stage.device_ids} == {"c"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", [SingleMode(), BalancedMode(), OptimalMode(), OptimalMode(num_stages=3)], ids=repr)
def test_plans_are_as_good_as_the_best_of_every_set_of_devices(mode: Mode) -> None:
    """Each set of devices alone, all of it used: planned over as the only ones there are."""
    devices = (cpu("a"), cpu("b"), cpu("c", "there"), cpu("d", "there", 1 << 39))
    options = PlanOptions(mode=mode)
    plan = make_plan(GRAPH, "id", inventory(*devices), options)
    values = []
    for uses in product((False, True), repeat=len(devices)):
        some = [device for device, used in zip(devices, uses, strict=True) if used]
        if len(some) >= getattr(mode, "num_stages", 0) and some:
            smaller_plan = make_plan(GRAPH, "id", inventory(*some), options)
            values.append(smaller_plan.bottleneck_seconds)
    assert plan.bottleneck_seconds == pytest.approx(min(values), rel=1e-12)
    assert (plan.lower_bound_seconds is None) == (mode == SingleMode())
    assert (plan.lower_bound_seconds or 0.0) <= min(values) * (1 + 1e-12)


def test_given_cuts_stay_and_are_weighed_with_the_shares_that_they_make() -> None:
    options = PlanOptions(mode=CutMode(module_paths=(GRAPH.nodes[2].module_path,)))
    plan = make_plan(GRAPH, "id", inventory(cpu("a"), cpu("b"), cpu("c")), options)
    assert len(plan.stages) == 2
    assert "1/2" in plan.shares_of_cores[0]
    assert plan.lower_bound_seconds is None


def test_choices_end_with_all_devices_and_take_the_largest_of_a_host_first() -> None:
    a, b, c = (cpu(name, memory_bytes=size) for name, size in {"a": 5, "b": 7, "c": 6}.items())
    devices = inventory(a, b, cpu("far", "there"), c)
    assert list(device_choices(devices, (), 0)) == [(1, 2), (1, 2, 3), (0, 1, 2, 3)]
    assert list(device_choices(devices, ("a",), 0)) == [(0, 2), (0, 1, 2), (0, 1, 2, 3)]
    assert list(device_choices(devices, ("a", "c"), 4)) == [(0, 1, 2, 3)]
    assert choices_are_all(devices, ())


def test_what_cannot_be_told_from_the_choices_is_not_proven() -> None:
    linked = Inventory(devices=(cpu("a"), cpu("b")), links={("a", "b"): DEFAULT_LINK})
    assert not choices_are_all(linked, ())
    faster = inventory(cpu("a"), replace(cpu("b"), flops_per_second=1e12))
    assert not choices_are_all(faster, ())
    assert make_plan(GRAPH, "id", faster, PlanOptions()).lower_bound_seconds is None
    many = inventory(*(cpu(f"{host}/{index}", str(host)) for host in range(5) for index in range(2)))
    assert not choices_are_all(many, ())
    choices = list(device_choices(many, (), 0))
    assert len(choices) <= MAX_CHOICES
    assert list(map(len, choices)) == [5, 10]
