"""Assignments in the place of others: nearly as good as the best, and of those the one whose states move least."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.errors import Infeasible
from planner.partition.assignment import Assignment
from planner.partition.before import Before
from planner.partition.problem import FREE, PartitionProblem
from planner.partition.registry import partition
from planner.partition.replacement import NEARLY, moved_bytes, replacement
from planner.partition.request import Request
from planner.partition.score import score
from planner.plan.options import OptimalMode, PlanOptions
from planner.planning import make_plan, make_replacement, partition_problem
from tests.builders.plans import inventory_of, plan_of
from tests.builders.random_graphs import random_graph
from tests.contract.graphs import linear_chain

REQUEST = Request(mode="optimal")
LAYER_BYTES = 4 * 1024 * 1024


def chain(num_devices: int, memory_bytes: int = 2**40, num_layers: int = 6) -> PartitionProblem:
    """Equal layers, each of LAYER_BYTES."""
    return partition_problem(linear_chain(num_layers, 1024), inventory_of(num_devices, memory_bytes), PlanOptions())


def before(*devices: int) -> Before:
    return Before(device_of_node=np.array(devices, dtype=np.int64))


def test_survivors_keep_what_they_hold_where_that_costs_nothing() -> None:
    """Three pairs of layers were on 0, 1 and a device that is gone: one layer more each is the best, too."""
    answer = replacement(chain(2), REQUEST, before(0, 0, FREE, FREE, 1, 1))
    assert answer.moved_bytes == 2 * LAYER_BYTES
    assert answer.assignment.stage_of_node == (0, 0, 0, 1, 1, 1)
    assert answer.excess == 0.0


def test_devices_change_places_to_keep_what_they_hold() -> None:
    answer = replacement(chain(2), REQUEST, before(1, 1, 1, FREE, 0, 0))
    assert answer.assignment.device_of_stage == (1, 0)
    assert answer.moved_bytes == LAYER_BYTES


def test_weights_move_where_staying_costs_more_than_nearly_nothing() -> None:
    """Were 0 to keep its one layer and 1 its three, 1 would take five of six seconds and not three."""
    answer = replacement(chain(2), REQUEST, before(0, FREE, FREE, 1, 1, 1))
    assert answer.assignment.stage_of_node == (0, 0, 0, 1, 1, 1)
    first = replacement(chain(2), REQUEST, before(FREE, FREE, 0, 1, 1, 1))
    assert (first.moved_bytes, first.assignment.stage_of_node) == (2 * LAYER_BYTES, (0, 0, 0, 1, 1, 1))
    last = replacement(chain(2), REQUEST, before(0, 1, 1, 1, FREE, FREE))
    assert last.assignment.stage_of_node == (0, 0, 0, 1, 1, 1)
    assert last.moved_bytes > 2 * LAYER_BYTES


def test_fewer_bytes_move_where_that_costs_next_to_nothing() -> None:
    """Two of 42 layers have lost their device: 22 on one are 5 % more than 21, and no other layer has to move."""
    answer = replacement(chain(2, num_layers=42), REQUEST, before(*[0] * 20, *[1] * 20, FREE, FREE))
    assert answer.moved_bytes == 2 * LAYER_BYTES
    assert answer.assignment.stage_of_node == (*[0] * 20, *[1] * 22)
    assert 0 < answer.excess <= NEARLY


def test_devices_hold_several_stages_where_nothing_else_fits() -> None:
    """The first and the last layer share one storage, and the only large device is the second."""
    problem = chain(2)
    tight = replace(problem, device_memory_bytes=np.array([5 * LAYER_BYTES // 2, 9 * LAYER_BYTES // 2]))
    fixed = replace(tight, fixed_device=before(1, FREE, FREE, FREE, FREE, 1).device_of_node)
    with pytest.raises(Infeasible):
        partition(fixed, REQUEST)
    answer = replacement(fixed, REQUEST, before(1, FREE, FREE, FREE, FREE, 1))
    assert score(fixed, answer.assignment, REQUEST.objective).fits
    assert answer.moved_bytes == 4 * LAYER_BYTES


def test_what_cannot_fit_is_told_as_that() -> None:
    with pytest.raises(Infeasible, match="lacks"):
        replacement(chain(1, 3 * LAYER_BYTES), REQUEST, before(0, 0, FREE, FREE, FREE, FREE))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_random_programs_stay_nearly_best_and_move_no_more_than_the_best(lost: int) -> None:
    for seed in range(4):
        graph = random_graph(seed, 8)
        problem = partition_problem(graph, inventory_of(2), PlanOptions())
        nodes = range(problem.num_nodes)
        device_before = before(*((FREE if node * 3 // len(nodes) == lost else node % 2) for node in nodes))
        best = partition(problem, REQUEST)
        answer = replacement(problem, REQUEST, device_before)
        value, least = (score(problem, one, REQUEST.objective).value for one in (answer.assignment, best))
        assert value <= least * (1 + NEARLY) * (1 + 1e-9)
        assert answer.moved_bytes == moved_bytes(problem, device_before, answer.assignment)
        assert answer.moved_bytes <= moved_bytes(problem, device_before, best)
        assert answer.moved_bytes >= fewest_moved_bytes(problem, device_before)


def fewest_moved_bytes(problem: PartitionProblem, device_before: Before) -> int:
    """Of all ways to put each node on a device, good or bad."""
    return min(
        moved_bytes(
            problem,
            device_before,
            Assignment(stage_of_node=tuple(range(len(devices))), device_of_stage=devices, reasons=()),
        )
        for devices in itertools.product(range(problem.num_devices), repeat=problem.num_nodes)
    )


def test_a_plan_in_the_place_of_another_is_for_the_devices_left() -> None:
    """What was fixed to the lost device is free, and the number of stages is not asked for any more."""
    graph, whole = linear_chain(6, 1024), inventory_of(3)
    replaced = plan_of(graph, [0, 0, 1, 1, 2, 2], inventory=whole)
    options = PlanOptions(fixed=(("layers.0", "node0/cpu"), ("layers.2", "node1/cpu")))
    plan, answer = make_replacement(graph, "id", whole.without(["node1/cpu"]), options, replaced)
    assert plan.options.fixed == (("layers.0", "node0/cpu"),)
    assert [stage.device_ids for stage in plan.stages] == [("node0/cpu",), ("node2/cpu",)]
    assert answer.moved_bytes == 2 * LAYER_BYTES
    fresh = make_plan(graph, "id", whole.without(["node1/cpu"]), PlanOptions())
    assert plan.objective_value <= fresh.objective_value * (1 + NEARLY)


def with_copies(num_devices: int, lost: str, may_copy: bool) -> tuple[list[tuple[str, ...]], int]:
    """The middle third of a program on two devices of four, and one of the devices gone."""
    graph, whole = linear_chain(6, 1024), inventory_of(num_devices)
    replaced = plan_of(graph, [0, 0, 1, 1, 2, 2], replicas=[(), (3,), ()], inventory=whole)
    mode = OptimalMode(replicate=may_copy)
    plan, answer = make_replacement(graph, "id", whole.without([lost]), PlanOptions(mode=mode), replaced)
    return [stage.device_ids for stage in plan.stages], answer.moved_bytes


@pytest.mark.parametrize("lost", ["node1/cpu", "node3/cpu"])
def test_without_one_of_its_copies_a_stage_stays_on_the_other(lost: str) -> None:
    [other] = {"node1/cpu", "node3/cpu"} - {lost}
    assert with_copies(4, lost, may_copy=False) == ([("node0/cpu",), (other,), ("node2/cpu",)], 0)


def test_idle_devices_become_copies_where_the_plan_asked_for_might_have_some() -> None:
    """All layers have to share a stage, of which one copy is gone, and a device is there that had none."""
    graph, whole = linear_chain(6, 1024), inventory_of(4)
    replaced = plan_of(graph, [0, 0, 0, 0, 0, 0], replicas=[(1, 2)], inventory=whole)
    options = PlanOptions(mode=OptimalMode(replicate=True), together=(tuple(f"layers.{at}" for at in range(6)),))
    plan, answer = make_replacement(graph, "id", whole.without(["node0/cpu"]), options, replaced)
    assert [stage.device_ids for stage in plan.stages] == [("node1/cpu", "node2/cpu", "node3/cpu")]
    assert answer.moved_bytes == 6 * LAYER_BYTES
    plain = replace(options, mode=OptimalMode())
    alone, _ = make_replacement(graph, "id", whole.without(["node0/cpu"]), plain, replaced)
    assert [stage.device_ids for stage in alone.stages] == [("node1/cpu", "node2/cpu")]
