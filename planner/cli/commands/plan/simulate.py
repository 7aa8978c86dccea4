"""`plan simulate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit, say
from planner.cli.study_tables import simulation_table
from planner.errors import InvalidArgument, OptionsError
from planner.partition.objective import PipelineSchedule
from planner.plan.plan import Plan
from planner.schedule.timeline import Simulation


@app.command("simulate")
def simulate_plan(
    plan: PlanArgument,
    microbatches: Annotated[
        int, typer.Option("--microbatches", min=0, help="How many; 0: a step's own in training, else 32.")
    ] = 0,
    schedule: Annotated[
        PipelineSchedule | None, typer.Option("--schedule", help="Training: another schedule than the plan's.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write the timeline for ui.perfetto.dev.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the plan's schedule in simulated time: bubbles, each device's busy time, a timeline."""
    with connect(server) as client:
        stored_plan = client.get_plan(plan)
    simulation = _simulate(stored_plan, microbatches, schedule)
    if trace is not None:
        _write_trace(trace, simulation)
    document = {"plan": stored_plan.id, "schedule": _schedule_name(stored_plan, schedule), "simulation": simulation}
    emit(document, output, lambda: simulation_table(stored_plan, _schedule_name(stored_plan, schedule), simulation))
    if trace is not None:
        say(f"timeline written to {trace}: open it in ui.perfetto.dev or chrome://tracing")


def _simulate(plan: Plan, microbatches: int, schedule: PipelineSchedule | None) -> Simulation:
    from planner.schedule.prediction import predict
    from planner.schedule.reschedule import with_training

    training = plan.options.training
    if training is None:
        if schedule is not None:
            raise OptionsError(
                f"--schedule {schedule.value}: the plan is for inference; make one with plan create --schedule"
            )
        return predict(plan, microbatches)
    training = replace(
        training, schedule=schedule or training.schedule, microbatches=microbatches or training.microbatches
    )
    return predict(with_training(plan, training))


def _schedule_name(plan: Plan, schedule: PipelineSchedule | None) -> str:
    if plan.options.training is None:
        return "inference"
    return (schedule or plan.options.training.schedule).value


def _write_trace(path: Path, simulation: Simulation) -> None:
    from planner.schedule.trace import chrome_trace

    try:
        path.write_text(json.dumps(chrome_trace(simulation)))
    except OSError as error:
        raise InvalidArgument(f"--trace {path}: {error.strerror}") from None
