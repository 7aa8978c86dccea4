"""Schedules count all that a lone batch waits for."""

from __future__ import annotations

from planner.partition.list_scheduling import _Tasks
from planner.partition.program_orders import bundles_of
from tests.planner.partition.problems import problem

# Bytes that take ten seconds from device to device.
SLOW_BYTES = 10


def test_what_the_program_returns_has_to_reach_the_last_stage() -> None:
    """Two nodes that need nothing of each other: on two devices the last stage waits for what the other returns."""
    program = problem(
        compute_seconds=[[1.1, 1.0]] * 2,
        reads=[[], []],
        value_bytes=[SLOW_BYTES, 0],
        num_inputs=0,
        returned=(0, 1),
        per_byte=1.0,
    )
    devices = _Tasks(program, bundles_of(program)).earliest_ends()
    assert devices is not None
    assert len(set(devices)) == 1


def test_what_the_program_takes_is_handed_on_by_the_first_stage() -> None:
    program = problem(
        compute_seconds=[[1.1, 1.0]] * 2,
        reads=[[], [0]],
        value_bytes=[SLOW_BYTES, 0, 0],
        returned=(1, 2),
        per_byte=1.0,
    )
    devices = _Tasks(program, bundles_of(program)).earliest_ends()
    assert devices is not None
    assert len(set(devices)) == 1
