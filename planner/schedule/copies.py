"""Copies of a stage take microbatches in turn, those of a training step as those of a stream: the one rule for both."""

from __future__ import annotations

from planner.plan.plan import Plan


def copy_index(num_copies: int, microbatch: int) -> int:
    """The copy whose turn a microbatch is, both counted from 0."""
    return microbatch % num_copies


def copy_of(plan: Plan, stage: int, microbatch: int) -> str:
    """The device that runs a stage for a microbatch."""
    device_ids = plan.stages[stage].device_ids
    return device_ids[copy_index(len(device_ids), microbatch)]


def serving_devices(plan: Plan, stage: int) -> tuple[str, ...]:
    """The devices that run a stage for a stream of microbatches, in turn.

    Where steps train, a stream evaluates, on the first copy alone: each copy has written its own buffers.
    """
    device_ids = plan.stages[stage].device_ids
    return device_ids if plan.options.training is None else device_ids[:1]
