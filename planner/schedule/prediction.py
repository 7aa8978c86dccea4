"""What the simulator says of a plan's own schedule, in the terms in which daemons measure it."""

from __future__ import annotations

from planner.plan.plan import Plan
from planner.schedule.inference import inference_schedule
from planner.schedule.simulate import simulate
from planner.schedule.timeline import Simulation
from planner.schedule.training import training_schedule

USUAL_MICROBATCHES = 32


def predict(plan: Plan, microbatches: int = 0) -> Simulation:
    """A training step of the plan, or a stream of so many microbatches; 0: USUAL_MICROBATCHES."""
    training = plan.options.training
    if training is None:
        return simulate(plan, inference_schedule(plan), microbatches=microbatches or USUAL_MICROBATCHES)
    return simulate(plan, training_schedule(plan), microbatches=microbatches or training.microbatches)


def idle_share(plan: Plan, simulation: Simulation) -> float:
    """Of all devices' time, the share in which they do not compute: of a whole step, or of a stream that is steady.

    A measurement cannot tell a wait for a message from its transfer, so both count, unlike in `bubble_share`.
    """
    seconds = simulation.makespan_seconds
    if plan.options.training is None and simulation.seconds_between_outputs:
        seconds = simulation.seconds_between_outputs * simulation.microbatches
    total = seconds * len(simulation.devices)
    return max(0.0, 1.0 - sum(device.busy_seconds for device in simulation.devices) / total) if total else 0.0
