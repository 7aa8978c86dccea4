"""Mode "single": all on the first of the largest devices."""

import pytest

from planner.errors import Infeasible
from planner.partition.modes.single import single
from tests.planner.partition.problems import chain


def test_first_of_the_largest_devices() -> None:
    assignment = single(chain([[1.0, 1.0]] * 3, memory_bytes=[50, 60, 60]))
    assert (assignment.device_of_stage, assignment.stage_of_node) == ((1,), (0, 0))


def test_what_lacks_is_said_even_if_two_devices_would_do() -> None:
    problem = chain([[1.0, 1.0]] * 2, states=[(30, (0,)), (30, (1,))], memory_bytes=[40, 40])
    with pytest.raises(Infeasible, match=r"stage 0.*needs 66 bytes.*'d0', has 40 bytes: 26 bytes are lacking"):
        single(problem)
