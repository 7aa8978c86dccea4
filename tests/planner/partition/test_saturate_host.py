"""Copies on idle devices: all stages or none, to the smallest that hold them."""

from planner.partition.assignment import contiguous
from planner.partition.problem import PartitionProblem
from planner.partition.saturate_host import saturate_host
from tests.planner.partition.problems import chain


def given(memory_bytes: list[int]) -> PartitionProblem:
    states = [(30, (0,)), (10, (1,))]
    return chain([[1.0] * 2] * len(memory_bytes), states=states, memory_bytes=memory_bytes, value_bytes=[0] * 3)


def test_each_used_device_gets_the_smallest_idle_one_that_holds_its_stages() -> None:
    problem = given([40, 40, 10, 50, 35, 20])
    saturated = saturate_host(problem, contiguous(problem, (0, 1, 2), (0, 1), ("", "")))
    assert saturated.devices_of_stage == ((0, 4, 3), (1, 2, 5))


def test_no_copies_where_one_stage_would_have_none() -> None:
    problem = given([40, 40, 20, 20])
    saturated = saturate_host(problem, contiguous(problem, (0, 1, 2), (0, 1), ("", "")))
    assert saturated.replicas == ()
